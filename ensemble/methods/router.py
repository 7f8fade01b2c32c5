"""A router: which member to ask, told by the questions most like this one.

On the dev questions it is known which members were right. A new question is held against all of them by the cosine of
their TF-IDF vectors (words and pairs of words), and the member with the best mean score on the nearest ones is taken.
In production only that member has to be run, which makes a router the cheapest of all methods.

What the prompts of a task share (instructions, demonstrations) is in each of them, so TF-IDF gives it little weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._response import Answered, ResponseMethod, ResponseSetup

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

METHOD = Method(
    level="response",
    summary="the member that was right on the dev questions most like this one (nearest neighbours)",
    when="members that are good at different kinds of questions, and only one of them may be run",
)


@dataclass(frozen=True, slots=True)
class Options:
    """The router's settings.

    Attributes:
        neighbours: Dev questions that are looked at, at least 1.
    """

    neighbours: int = 20

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise InputError(f"neighbours is {self.neighbours}; a router needs at least 1")


@dataclass(frozen=True, slots=True)
class Router:
    """A predictor of each member's score, fitted to the dev questions."""

    predictor: Pipeline

    def choose(self, question: Answered) -> int:
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        scores: list[float] = self.predictor.predict([question.prompt])[0].round(9).tolist()
        return scores.index(max(scores))


def make(setup: ResponseSetup, options: Options) -> ResponseMethod:
    """Fit a router to the dev questions.

    Raises:
        InputError: There are fewer of them than neighbours are wanted, or some without scores.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline

    if len(setup.dev) < options.neighbours:
        raise InputError(
            f"method router: it needs {options.neighbours} dev questions to learn from, and there are "
            f"{len(setup.dev)}; profile the members on more"
        )
    predictor = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\S+"),
        KNeighborsRegressor(options.neighbours, metric="cosine"),
    )
    predictor.fit([question.prompt for question in setup.dev], [_scores(question) for question in setup.dev])
    return Router(predictor)


def _scores(question: Answered) -> Sequence[float]:
    scores = [response.score for response in question.responses]
    if None in scores:
        raise InputError("method router: a dev question has a response without a score; grade all of them")
    return [score for score in scores if score is not None]
