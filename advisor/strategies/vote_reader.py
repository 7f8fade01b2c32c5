"""How votes are read: by the task's metric and pattern, without a reference.

The metric and the pattern come from a run folder or an exported one, which may be a stranger's. The metric is one of
this project, and the pattern is compiled in a child process first.
"""

from __future__ import annotations

from advisor.tasks.metrics import get_metric
from advisor.tasks.metrics.choice import LETTERS_ALONE
from advisor.tasks.task import MAX_RESPONSE, Task, read_answer
from advisor.tasks.templates import check_pattern
from ensemble.errors import InputError

VOTE_METRICS = (
    *("exact_match", "number", "number_comma", "choice"),
    *("json", "json_fields", "tool_call", "exact_match_squad"),
)
"""Metrics that read an answer in one spelling, and without the reference. `contains` searches for the reference, so its
answers would tell the vote which one is right."""
_LONGEST_PATTERN = 10_000


def can_vote(task: Task) -> bool:
    """Whether the answers that the task's metric reads can be counted as votes."""
    return task.metric in VOTE_METRICS and task.scorer is None


class VoteReader:
    """Reads the answer of a response, for a vote."""

    def __init__(self, metric: object, extract: object, place: str) -> None:
        if not isinstance(metric, str) or metric not in VOTE_METRICS:
            shown = f"{metric[:60]!r}" if isinstance(metric, str) else "not a name"
            raise InputError(
                f"{place}: metric is {shown}, and votes are read by {', '.join(VOTE_METRICS)}; run `advisor select` "
                "again with one of these, or choose another strategy with --strategy"
            )
        if extract is not None:
            if not isinstance(extract, str) or len(extract) > _LONGEST_PATTERN:
                raise InputError(
                    f"{place}: extract should be a text of at most {_LONGEST_PATTERN:,} characters; run `advisor "
                    "select` again with a shorter one"
                )
            if (problem := check_pattern(extract)) is not None:
                raise InputError(f"{place}: extract cannot be used ({problem}); run `advisor select` again")
        self.metric, self.extract = metric, extract

    def problem(self, text: str) -> str | None:
        """Why a response has no answer, where JSON was looked for."""
        return read_answer(self.metric, self.extract, text[:MAX_RESPONSE])[1]

    def read(self, text: str) -> str | None:
        """The answer in a response, in one spelling (for ``choice`` the letter that it names); None if it has none."""
        answer, _ = read_answer(self.metric, self.extract, text[:MAX_RESPONSE])
        if answer is None:
            return None
        _, extracted = get_metric(self.metric).score(answer, (), LETTERS_ALONE if self.metric == "choice" else ())
        return extracted
