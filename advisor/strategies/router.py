"""A router from elsewhere: for each question, a file names the model that it chose. It is compared, and not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from advisor.records import Profile
from advisor.strategies.strategy import AnsweredSplit, Choice, Flow, QuestionText, Replay, Strategy, TrainingData
from advisor.tasks.tables.rows import checked_rows, columns_of
from ensemble.common.text import counted, did_you_mean, first_of, visible
from ensemble.errors import InputError

_QUESTIONS = ("id", "question")
"""The columns by which a row of the file belongs to a question."""


@dataclass(frozen=True)
class Router(Strategy):
    """A router whose choices are known for some questions."""

    KIND: ClassVar[str] = "router"
    SIMPLICITY: ClassVar[int] = 25
    ROLE: ClassVar[str] = "routed to"
    MEMBERS: ClassVar[tuple[int, int]] = (1, 100)

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Router]:  # noqa: ARG003
        """No router: a file has its choices."""
        yield from ()

    def flow(self, question: QuestionText) -> Flow:
        """Refuse: the router itself is not here."""
        yield from ()
        raise InputError(
            f"{question.place}: only the router knows which model it takes; ask it, or choose another strategy with "
            "--strategy"
        )

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Your router, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return f"Keep your router, which sends each question to one of {self._names}"

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return "Keep your router."


def read_router(path: Path, names: Sequence[str], say: Callable[[str], None]) -> dict[str, str]:
    """The model of each question, by its id or its text, as a table says; `names` are the models of the logs."""
    columns = columns_of(path)
    key = next((name for name in _QUESTIONS if name in columns), None)
    if key is None or "model" not in columns:
        found = first_of([*map(visible, columns)], 20)
        raise InputError(f"--router {path}: give a table with the columns id (or question) and model; it has {found}")
    chosen, notes = dict[str, str](), list[str]()
    for values, place in checked_rows(path, (key, "model"), notes):
        question, model = (None if value is None else str(value) for value in (values[key], values["model"]))
        if question is None or model is None:
            continue
        if model not in names:
            near = did_you_mean(model, names)
            raise InputError(
                f"{place}: no log has the model {visible(model)!r}; {near}there are {first_of(sorted(names), 3)}"
            )
        if chosen.setdefault(question, model) != model:
            raise InputError(f"{place}: {visible(question)!r} has two models; leave one row of it")
    for note in notes:
        say(note)
    return chosen


def with_router(path: Path, splits: Sequence[AnsweredSplit], say: Callable[[str], None]) -> tuple[AnsweredSplit, ...]:
    """The splits with the answers of a router to all questions; InputError if it says nothing of some of them."""
    names = [*splits[0].profiles]
    chosen = read_router(path, names, say)
    models = [[chosen.get(each.id) or chosen.get(each.question) for each in split.task.examples] for split in splits]
    unknown = [
        each.id
        for split, own in zip(splits, models, strict=True)
        for each, model in zip(split.task.examples, own, strict=True)
        if model is None
    ]
    if unknown:
        raise InputError(
            f"--router {path}: it has no model for {counted(len(unknown), 'question')}, for example "
            f"{visible(unknown[0])!r}; give one for each question of the logs"
        )
    used = {model for own in models for model in own}
    strategy = Router(tuple(name for name in names if name in used))
    return tuple(
        replace(split, written={strategy: _routed(split.profiles, own)})
        for split, own in zip(splits, models, strict=True)
    )


def _routed(profiles: Mapping[str, Profile], models: Sequence[str | None]) -> Replay:
    """What a router answers that takes these models, question by question."""
    takes: tuple[Choice, ...] = tuple((model or "", None) for model in models)
    answers = tuple(profiles[model].answers[n] for n, (model, _) in enumerate(takes))
    steps: dict[Choice, NDArray[np.intp]] = {
        take: np.array([0 if take == each else -1 for each in takes]) for take in dict.fromkeys(takes)
    }
    return Replay(Profile(Router.KIND, answers), takes, steps)
