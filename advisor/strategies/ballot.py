"""The votes on one question: for whole answers, or, with ``compare: fields`` in the task, for each field of objects.

With fields, the values that win are joined to one object. Each field at the top is voted on among the objects; a value
that is an object or a list counts as a whole, and an object without a field votes for leaving it out. All objects
together are one answer beside those that are no objects. :mod:`ensemble.methods.voting` counts and decides ties, in
each field as elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from advisor.tasks.metrics._json import canonical
from ensemble.methods.voting import Codes, answer_codes, vote

Taken = int | str
"""The number of the response that is taken; or an answer that joins the fields of several responses."""
_OBJECT, _ABSENT = "{", ""
"""What stands for any object, and for a field that one lacks; neither is JSON."""


class Ballot:
    """The votes on one question.

    Args:
        answers: The answers of responses; None where a response has none. With fields, in the canonical form of JSON.
        by_field: Whether each field of objects is voted on.

    Attributes:
        codes: Answers by votes: the vote on the kind or the whole answer; then, with fields, that on a field that no
            answer has, and that on each field.
    """

    def __init__(self, answers: Sequence[str | None], *, by_field: bool) -> None:
        self._answers = answers
        self._objects = [_fields(answer) if by_field else None for answer in answers]
        self._names = list(dict.fromkeys(name for own in self._objects for name in own or ()))
        self.codes: Codes = answer_codes([self._row(*pair) for pair in zip(answers, self._objects, strict=True)])

    def _row(self, answer: str | None, fields: Mapping[str, str] | None) -> Sequence[str | None]:
        if fields is None:
            return answer, *[None] * (1 + len(self._names))
        return _OBJECT, _ABSENT, *(fields.get(name, _ABSENT) for name in self._names)

    def taken(self, weights: Sequence[float] | None = None, *, joins: bool = True) -> Taken:
        """What wins: the first response with the winning answer, or an answer that no response has.

        Args:
            weights: The weight of each response's vote; None for 1 each.
            joins: Whether it may be such an answer; else the first response is taken that has the most of its fields.
        """
        winners = vote(self.codes, weights)
        if self._objects[winners[0]] is None:
            return int(winners[0])
        won = {name: (self._objects[row] or {}).get(name) for name, row in zip(self._names, winners[2:], strict=True)}
        fields = {name: value for name, value in won.items() if value is not None}
        text = f"{{{','.join(f'{canonical(name)}:{fields[name]}' for name in sorted(fields))}}}"
        if text in self._answers:
            return self._answers.index(text)
        equal = (self.codes == self.codes[winners, range(len(winners))]).sum(axis=1)
        return text if joins else int(equal.argmax())

    @property
    def is_object(self) -> bool:
        """Whether the answer that wins is an object, field by field; each response's vote counts as one."""
        return self._objects[vote(self.codes)[0]] is not None

    def agreement(self, answer: str) -> float:
        """The share of the responses with this answer, 0 to 1; with fields, the mean share over its fields."""
        wanted = _fields(answer) if any(own is not None for own in self._objects) else None
        if not wanted:
            return self._answers.count(answer) / len(self._answers)
        names = dict.fromkeys([*wanted, *self._names])
        equal = sum(own.get(name) == wanted.get(name) for own in self._objects if own is not None for name in names)
        return equal / (len(names) * len(self._answers))


@lru_cache(maxsize=1000)  # a cascade reads the answers again after each call; one may have 100,000 characters
def _fields(answer: str | None) -> Mapping[str, str] | None:
    """The canonical forms of the values of an answer's fields; None if it is no object."""
    if answer is None or not answer.startswith("{"):
        return None
    return {name: canonical(value) for name, value in json.loads(answer).items()}
