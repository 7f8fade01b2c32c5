"""The questions of one split of a task of lm-eval, with the prompts that lm-eval makes for them.

lm-eval draws demonstrations anew for every question, from one stream of random numbers. So the prompt of a question
depends on its place in the split, and the stream is run past those that are not wanted.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from advisor.tasks.values import Example
from ensemble.errors import InputError

_DEV = 300
"""Questions of the dev split, as GSM8K's has in the papers."""
_ENOUGH = 20
"""A split with fewer questions is no dev split; some have just the demonstrations (MMLU's have five)."""
_SEED = 1234
"""The seed of lm-eval's demonstrations where its user names none."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the record that lm-eval scores it by."""

    example: Example
    doc: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """The questions of a split, and what is to be said of them, a sentence each."""

    questions: tuple[Question, ...]
    notes: tuple[str, ...]


def ask(name: str, task: Any, split: str, *, shots: int, limit: int | None, seed: int) -> Asked:
    """Choose the questions of a split, and make their prompts.

    Args:
        name: The task's name, for messages.
        task: lm-eval's task.
        split: ``dev``, ``held_out``, or a split that the task uses.
        shots: Demonstrations before each question.
        limit: Questions at most.
        seed: Of every draw.

    Raises:
        InputError: The split does not exist, or is empty.
    """
    splits = Splits(name, task)
    notes: list[str] = []
    role = splits.dev if split == "dev" else splits.held_out if split == "held_out" else split
    docs = splits.docs(role)
    order = random.Random(seed).sample(range(len(docs)), len(docs))
    dev = splits.sample(seed)
    if split == "dev":
        places = dev
        if role == splits.held_out:
            notes.append(f"dev: {len(dev)} of the {len(docs)} questions that it shares with held_out")
    elif split == "held_out":
        places = _outside(task, docs, order, limit, splits.texts(dev))
    else:
        places = order
    kept = sorted(places if split == "dev" else places[:limit])
    prompts = dict(zip(kept, _prompts(task, docs, kept, shots, seed), strict=True))
    own = {place for place, prompt in prompts.items() if split == "dev" and _repeats(task, docs[place], prompt)}
    if own:
        notes.append(f"dev: {len(own)} questions left out, which are among their own demonstrations")
    # As everywhere: all in the order of the data, or the first of a seeded order.
    final = [place for place in (kept if limit is None else order) if place in prompts and place not in own][:limit]
    if not final:
        raise InputError(f"lm_eval:{name}: the split '{split}' has no questions; give another split, or fewer --shots")
    if limit is not None and len(final) < limit:
        notes.append(f"{split}: the limit is {limit}, and there are only {len(final)} questions")
    return Asked(tuple(_question(task, role, place, docs[place], prompts[place]) for place in final), tuple(notes))


class Splits:
    """Which of a task's splits serves as what.

    Args:
        name: The task's name, for messages.
        task: lm-eval's task.
    """

    def __init__(self, name: str, task: Any) -> None:
        self._name, self._task = name, task
        config = task.config
        self._readers = {
            config.training_split: task.training_docs,
            config.validation_split: task.validation_docs,
            config.test_split: task.test_docs,
        }
        self._readers.pop(None, None)
        shots = task.fewshot_cfg.split
        if shots is not None:
            self._readers.setdefault(shots, task.fewshot_docs)
        self.held_out: str = config.test_split or config.validation_split
        others = (config.validation_split, config.training_split, shots)
        self.dev: str = next(
            (one for one in others if one not in (None, self.held_out) and len(self.docs(one)) >= _ENOUGH),
            self.held_out,
        )

    def docs(self, split: str) -> Sequence[dict[str, Any]]:
        """All records of a split.

        Raises:
            InputError: The task uses no such split.
        """
        if split not in self._readers:
            known = ", ".join(sorted({"dev", "held_out", *self._readers}))
            raise InputError(f"--split {split}: lm_eval:{self._name} has none of that name; choose among {known}")
        docs: Sequence[dict[str, Any]] = self._readers[split]()
        return docs

    def sample(self, seed: int) -> list[int]:
        """Places of the dev questions in their split, in a seeded order; at most half of a split that is shared."""
        count = len(self.docs(self.dev))
        most = count // 2 if self.dev == self.held_out else count
        return random.Random(seed).sample(range(count), count)[: min(_DEV, most)]

    def texts(self, places: Sequence[int]) -> set[str]:
        """What tells dev questions from others."""
        docs = self.docs(self.dev)
        return {_text(self._task, docs[place]) for place in places}


def _outside(
    task: Any, docs: Sequence[dict[str, Any]], order: Sequence[int], limit: int | None, taken: set[str]
) -> list[int]:
    """Places of questions that are not taken, in the order given, and no more than the limit."""
    found: list[int] = []
    for place in order:
        if limit is not None and len(found) == limit:
            break
        if _text(task, docs[place]) not in taken:
            found.append(place)
    return found


def _prompts(task: Any, docs: Sequence[dict[str, Any]], places: Sequence[int], shots: int, seed: int) -> Iterator[str]:
    """The prompts of some questions, in the order of the data."""
    wanted = set(places)
    demonstrations = task.fewshot_docs() if shots else None
    if demonstrations is not None:
        # A new one: the task is used for several splits, and a sampler remembers what it has drawn.
        task.sampler = type(task.sampler)(list(demonstrations), rnd=None)
    task.set_fewshot_seed(_SEED + seed)
    own = task.fewshot_cfg.split == task.config.test_split
    for place in range(max(places, default=-1) + 1):
        if place in wanted:
            doc = docs[place]
            yield task.fewshot_context(doc, num_fewshot=shots, gen_prefix=task.doc_to_prefix(doc))
        elif shots:
            task.sampler.sample(n=shots, eval_doc=docs[place] if own else None)


def _question(task: Any, split: str, place: int, doc: dict[str, Any], prompt: str) -> Question:
    target = task.doc_to_target(doc)
    choices: tuple[str, ...] = ()
    if task.OUTPUT_TYPE == "multiple_choice":
        choices = tuple(map(str, task.doc_to_choice(doc)))
    if task.config.doc_to_choice is not None:
        named = choices or tuple(map(str, task.doc_to_choice(doc)))
        target = [named[one] if isinstance(one, int) else one for one in _listed(target)]
    texts = tuple(str(text) for text in _listed(target))
    reference = texts[0] if len(texts) == 1 else texts
    text = str(task.doc_to_text(doc))
    return Question(Example(f"{split}-{place}", prompt, text, reference, choices), doc)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _repeats(task: Any, doc: dict[str, Any], prompt: str) -> bool:
    """Whether a question stands in its prompt more than once."""
    text = str(task.doc_to_text(doc))
    return bool(text.strip()) and prompt.count(text) > 1


def _text(task: Any, doc: dict[str, Any]) -> str:
    choices = task.doc_to_choice(doc) if task.OUTPUT_TYPE == "multiple_choice" else []
    return json.dumps([str(task.doc_to_text(doc)), *map(str, choices)])
