"""Inside a step: a few telling questions, decoded again with a trace of what every member wanted.

Decoding with a trace emits what decoding without one does. On a processor that counts otherwise for other batches the
text may still differ; what was traced would then be another response, so it is left out, and said.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advisor.config import RunConfig
from advisor.profile.generate import free_memory
from advisor.profile.profiler import Profiler
from advisor.profile.sheet import question_key
from advisor.progress import Progress
from advisor.records import Profile
from advisor.response_cache import Store
from advisor.tasks.task import Task
from advisor.verify.held_out import Verified
from ensemble.errors import UniteError
from ensemble.methods import list_methods
from ensemble.models.spec import first_line

if TYPE_CHECKING:
    from ensemble.step.trace import Candidate, Step

_LOG = logging.getLogger(__name__)

OF_A_KIND = 4
"""Questions of each kind: mended, broken, and those on which the members are most divided."""

MOST_STEPS = 256
"""Steps of a response that are kept; the first ones."""

MOST_CANDIDATES = 8
"""Candidates of a step that are kept: the likeliest, and always the one that won."""

FORM = 1
"""Of what :func:`describe` returns; part of the key that it is stored under."""

AT_A_TIME = 8
"""Prompts that are decoded together, at the most: a trace of a whole batch's steps is kept until it is done."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """Traces some of a verified set's responses.

    Attributes:
        plan: What the run does.
        profiler: Knows what its models are, and loads them.
        store: Where traces are looked up and kept.
        watcher: Who is told how far it is, and what is left out.
    """

    plan: RunConfig
    profiler: Profiler
    store: Store
    watcher: Progress

    def traces(self, verified: Verified) -> dict[int, dict[str, Any]]:
        """The steps of the responses to a few telling questions, by number; see :func:`describe`."""
        task, names = verified.task, [member.model for member in verified.members]
        # Where an option is chosen by its likelihood nobody wrote anything; other methods than those of tokens have no
        # steps.
        if task.metric == "choice" or list_methods()[self.plan.decoding.method].level != "token":
            return {}
        members = [self.profiler.identities[name].key() for name in names]
        key = {"members": members, **self.plan.decoding.key(), "trace": FORM}
        numbers = choose(verified.ensemble, verified.members, verified.single)
        keys = {n: question_key(key, task.examples[n], task, self.plan.inference) for n in numbers}
        found = {n: kept for n in numbers if (kept := self.store.value(keys[n])) is not None}
        missing = {n: verified.ensemble.answers[n].text for n in numbers if n not in found}
        if missing:
            try:
                with self.watcher.stage("step by step", len(numbers)) as advance:
                    advance(len(found))
                    for n, trace in self._decode(names, task, missing):
                        found[n] = trace
                        self.store.keep(keys[n], trace)
                        advance(1)
            except Exception as error:  # of transformers, torch, or of code that came with a model
                if type(error) is UniteError:  # of the store
                    raise
                _LOG.debug("responses cannot be traced", exc_info=error)
                self.watcher.say(f"responses could not be followed step by step: {first_line(error)}")
            free_memory()
        return {n: trace for n, trace in sorted(found.items()) if trace.get("steps")}

    def _decode(
        self, names: Sequence[str], task: Task, missing: Mapping[int, str]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Decode again; a response that comes out otherwise has no steps."""
        from ensemble.decode.settings import Batch, Settings

        ensemble, numbers = self.profiler.load(names), list(missing)
        size = min(self.plan.inference.batch_size or AT_A_TIME, AT_A_TIME)
        limit = self.plan.inference.limit(task)
        settings, batch = Settings(limit, task.stop), Batch(size, trace=True)
        prompts = [ensemble.encode(task.examples[n].model_input) for n in numbers]
        for place, generation in ensemble.generate_each(prompts, settings, batch):
            n = numbers[place]
            same = generation.text == missing[n]
            if not same:
                self.watcher.say(f"{task.examples[n].id}: decoded again it came out otherwise, so it has no trace")
            yield n, describe(generation.trace if same else (), names)


def choose(together: Profile, members: Sequence[Profile], single: Profile) -> list[int]:
    """Choose the questions to trace, by number: the first of each kind.

    Args:
        together: The ensemble's answers.
        members: Each member's alone, on the same questions.
        single: The answers that the ensemble is held against.
    """
    changes = [joint.score - alone.score for joint, alone in zip(together.answers, single.answers, strict=True)]
    answered = [n for n, answer in enumerate(together.answers) if answer.error is None and answer.text]
    mended = [n for n in answered if changes[n] > 0][:OF_A_KIND]
    broken = [n for n in answered if changes[n] < 0][:OF_A_KIND]
    left = [n for n in answered if n not in (*mended, *broken)]
    said = {n: len({_said(member, n) for member in members}) for n in left}
    divided = [n for n in sorted(left, key=lambda n: -said[n]) if said[n] > 1][:OF_A_KIND]
    return sorted({*mended, *broken, *divided})


def describe(steps: Sequence[Step], members: Sequence[str]) -> dict[str, Any]:
    """Describe a generation's steps, as ``samples.jsonl`` has them.

    Texts are null for the end of the text; bytes that are no whole characters are spelt out: ``⟨E2 82⟩``.
    """
    return {
        "members": list(members),
        "steps": [_step(step) for step in steps[:MOST_STEPS]],
        "left_out": max(len(steps) - MOST_STEPS, 0),
    }


def _said(member: Profile, n: int) -> str | None:
    answer = member.answers[n]
    return answer.text if answer.extracted is None else answer.extracted


def _step(step: Step) -> dict[str, Any]:
    kept = step.likeliest(MOST_CANDIDATES)
    return {
        "text": _text(step.data),
        "won_by": list(step.won_by),
        "disagreement": round(step.disagreement, 4),
        "union": len(step.candidates),
        "chosen": kept.index(step.chosen),
        "candidates": [_candidate(step.candidates[n]) for n in kept],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "text": _text(candidate.data),
        "probabilities": [round(p, 4) for p in candidate.probabilities],
        "mean": round(candidate.mean, 4),
        "wanted_by": list(candidate.wanted_by),
    }


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"⟨{data.hex(' ').upper()}⟩"
