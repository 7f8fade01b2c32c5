"""A consensus of texts that cannot be counted, for example translations: the text that agrees most with the others.

The members' texts are samples of the texts that would do, and a metric that compares two texts says how well one
serves where another one was wanted. The text with the highest mean serves best, which is minimum Bayes risk (Kumar and
Byrne 2004, Minimum Bayes-Risk Decoding for Statistical Machine Translation). The first two members are asked at once;
where their texts agree, the first one is taken, and else all others are asked. The second member is the one whose
agreement with the best tells most, and the limit is such that a question takes few calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import product
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from advisor.records import TOLERANCE
from advisor.statistics import Floats, is_binary, scores
from advisor.strategies.strategy import FEWEST_VOTERS, Call, Flow, QuestionText, Reply, Strategy, TrainingData
from advisor.tasks.metrics import COMPARING, get_metric
from ensemble.methods._response import most_alike

_MOST_CALLS = 2.65
"""Calls of a question that a consensus takes on average."""
_LEAST = 4
"""Members of the smaller consensus that is tried: with 3, better texts are too often outvoted
(`python -m benchmarks.pools --only consensus`)."""
_LONGEST = 1000
"""Characters of a text that are compared: more take long, and hardly change which texts agree."""
_FIRST = 2
"""The members that are asked in any case."""
Metric = Annotated[str, Field(strict=True, max_length=100, description="of a consensus: what compares two texts")]
Agreement = Annotated[
    float, Field(strict=True, ge=0, le=1, description="of a consensus: how alike the first two texts must be")
]


@dataclass(frozen=True)
class Consensus(Strategy):
    """A consensus of texts.

    Attributes:
        metric: The metric that compares two texts.
        agreement: How alike the first two texts must be, by this metric, so that no others are asked.
    """

    metric: Metric
    agreement: Agreement

    KIND: ClassVar[str] = "consensus"
    SIMPLICITY: ClassVar[int] = 50
    LEARNS: ClassVar[bool] = True
    ROLE: ClassVar[str] = "writer {n}"
    MEMBERS: ClassVar[tuple[int, int]] = (FEWEST_VOTERS, 20)

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Consensus]:
        """See :meth:`Strategy.learn`."""
        metric, profiles = given.questions.task.metric, given.profiles(given.voters)
        answers = list(zip(*(profile.answers for profile in profiles), strict=True))
        # What was chosen among options is no text, and some logs have none.
        has_texts = all(each.text is not None and not each.options for own in answers for each in own)
        if given.can_vote or len(profiles) < FEWEST_VOTERS or not answers or not has_texts:
            return
        texts = [[each.text or "" for each in own] for own in answers]
        graded = np.stack([scores(profile) for profile in profiles], axis=1)
        # What is right or wrong is hardly so because it is like other texts.
        if metric not in COMPARING and is_binary(graded):
            return
        metric = metric if metric in COMPARING else COMPARING[0]

        @cache
        def taken(members: frozenset[int]) -> Floats:
            """The scores of the texts that are most like those of the other members."""
            rows = sorted(members)
            places = [rows[_chosen(metric, [own[row] for row in rows])] for own in texts]
            return graded[np.arange(len(texts)), places]

        best, found = float(graded[:, 0].mean()), cls(given.voters[:FEWEST_VOTERS], metric, 0.0)
        for second, size in product(range(1, len(profiles)), sorted({min(_LEAST, len(profiles)), len(profiles)})):
            order = [0, second, *(row for row in range(1, len(profiles)) if row != second)][:size]
            first = np.array([similarity(metric, own[0], own[second]) for own in texts])
            limit = _limit(first, size)
            gained = float(np.where(first >= limit, graded[:, 0], taken(frozenset(order))).mean())
            if gained > best + TOLERANCE:
                best, found = gained, cls(tuple(given.voters[row] for row in order), metric, limit)
        yield found

    def problem(self) -> tuple[str, str] | None:
        """See :meth:`Strategy.problem`."""
        return None if self.metric in COMPARING else ("metric", f"one of {', '.join(COMPARING)}")

    def flow(self, question: QuestionText) -> Flow:  # noqa: ARG002
        """Ask the first two; where they do not agree, all others."""
        replies: list[Reply] = list((yield [Call((member,)) for member in range(_FIRST)]))
        first, second = (reply.text for reply in replies)
        if first is not None and second is not None and similarity(self.metric, first, second) >= self.agreement:
            return 0
        replies += yield [Call((member,)) for member in range(_FIRST, len(self.members))]
        return _chosen(self.metric, [reply.text for reply in replies])

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Consensus, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return (
            f"Ask {self.members[0]} and {self.members[1]}, take the text of the first one where the two are alike, "
            f"and else ask all of {self._names}, and take the text that is most like the others (a consensus)"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Take the consensus of {self._count} models."


def _chosen(metric: str, texts: Sequence[str | None]) -> int:
    """The number of the text that is most like the others; 0 if all are empty."""
    written = [(n, text) for n, text in enumerate(texts) if text and text.strip()]
    return written[most_alike([text for _, text in written], partial(similarity, metric))][0] if written else 0


def similarity(metric: str, text: str, other: str) -> float:
    """How well a text serves where the other one was wanted, 0 to 1."""
    return _similarity(metric, text[:_LONGEST], other[:_LONGEST])


# The folds of cross-fitting compare the same texts again and again.
@lru_cache(maxsize=1 << 17)
def _similarity(metric: str, text: str, other: str) -> float:
    return get_metric(metric).score(text, (other,), ())[0]


def _limit(first: Floats, members: int) -> float:
    """The agreement of the first two from which on only they are asked: questions then take the calls that they may."""
    return float(np.quantile(first, min(1.0, (_MOST_CALLS - _FIRST) / (members - _FIRST))))
