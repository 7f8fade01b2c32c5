"""A router: each question goes to the member that was best on similar questions.

The members' scores on the dev questions are known. For a new question the router finds the nearest dev questions by the
cosine of their TF-IDF vectors (words and pairs of words), and takes the member with the best mean score on them. In
production only this member runs, so a router is the cheapest of all methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._response import ResponseMethod

METHOD = Method(
    level="response",
    summary="the member with the best scores on the most similar dev questions (nearest neighbours)",
    when="members that are good at different kinds of questions, when only one of them can run",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the router.

    Attributes:
        neighbours: How many of the nearest dev questions count, at least 1.
    """

    neighbours: int = 20

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise InputError(f"neighbours is {self.neighbours}; it must be at least 1")


class Router:
    """Predicts each member's score on a question.

    Args:
        prompts: The prompts of the dev questions.
        scores: For each prompt every member's score, from 0 to 1, the primary's first.
        neighbours: See :class:`Options`.
    """

    def __init__(self, prompts: Sequence[str], scores: Sequence[Sequence[float]], neighbours: int) -> None:
        # Here, because scikit-learn takes a second to import, and few runs use a router.
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.neighbors import KNeighborsRegressor
        from sklearn.pipeline import make_pipeline

        self._predictor = make_pipeline(
            # Instructions and demonstrations are in every prompt of a task, so TF-IDF gives them little weight.
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\S+"),
            KNeighborsRegressor(neighbours, metric="cosine"),
        )
        self._predictor.fit(list(prompts), [list(row) for row in scores])

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        return self.choose_all([prompt])[0]

    def choose_all(self, prompts: Sequence[str]) -> list[int]:
        """Choose for many prompts at once, which is much faster than one by one."""
        # Rounded, so that floating-point noise does not decide a tie, which the primary wins.
        chosen: list[int] = self._predictor.predict(list(prompts)).round(9).argmax(axis=1).tolist()
        return chosen


def make(prompts: Sequence[str], scores: Sequence[Sequence[float]], options: Options) -> ResponseMethod:
    """Fit a router to dev questions.

    Raises:
        InputError: There are fewer dev questions than neighbours.
    """
    if len(prompts) < options.neighbours:
        raise InputError(
            f"it needs {options.neighbours} dev questions to learn from, and there are "
            f"{len(prompts)}; profile the members on more",
            of="method router",
        )
    return Router(prompts, scores, options.neighbours)
