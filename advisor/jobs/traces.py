"""Traces: a few informative questions, decoded again with the probabilities of every member at each step.

Decoding with a trace generates the same text as decoding without one. Only where rounding depends on the size of the
batch can the text differ. The trace is then that of another response, so it is left out, with a message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from advisor.jobs.held_out import ChosenSet
from advisor.models.job import continued, question_key, responses
from advisor.models.local_model import free_memory
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import InferenceConfig, RunConfig
from advisor.progress import Progress
from advisor.records import Profile
from advisor.tasks.task import Task
from ensemble.errors import UniteError, first_line
from ensemble.methods import list_methods

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.decode.sequences import Generation
    from ensemble.step.trace import Candidate, Step

_LOG = logging.getLogger(__name__)

OF_A_KIND = 4
"""The most questions of each kind: corrected, spoiled, and those on which the members disagree most."""
MOST_STEPS = 256  # of a response, from the first one on: a trace is some 100 times as large as its text
MOST_CANDIDATES = 8  # of a step; the chosen one is always among them
FORM = 1  # of what `describe` returns; part of the key, so that a stored trace of another form is not read
MOST_PROMPTS = 8  # in a batch, because the traces of a whole batch are in memory until it is done


def trace_responses(
    chosen: ChosenSet,
    held_out: Task,
    single: str,
    config: RunConfig,
    profiler: Profiler,
    cache: ResponseCache,
    progress: Progress,
) -> dict[int, dict[str, Any]]:
    """The steps of some responses of the first verified set, by the number of the question; see :func:`describe`."""
    together, names = chosen.verified[0].profile, list(chosen.verified[0].strategy.members)
    task = continued(held_out, responses(together))
    # A choice task has no generated text, and only token-level methods have steps.
    if task.metric == "choice" or list_methods()[config.method].level != "token":
        return {}
    key = {**profiler.key(names, profiler.decoding(names)), "trace": FORM}
    numbers = choose(together, [chosen.alone[name] for name in names], chosen.alone[single])
    keys = {n: question_key(key, task.examples[n], task, config.inference) for n in numbers}
    stored = {n: cache.value(keys[n], lambda trace: _fits(trace, names)) for n in numbers}
    traces = {n: trace for n, trace in stored.items() if trace is not None}
    missing = {n: together.answers[n].text for n in numbers if n not in traces}
    if missing:
        try:
            with progress.stage("step by step", len(numbers)) as advance:
                advance(len(traces))
                for n, generation in _decode(profiler.load(names), task, config.inference, list(missing)):
                    # Batches of another size round differently; steps of another text would mislead.
                    same = generation.text == missing[n]
                    if not same:
                        progress.say(f"{task.examples[n].id}: the response differs when decoded again; it has no trace")
                    # An empty trace is stored as well, so that the question is not decoded at each run.
                    traces[n] = describe(generation.trace if same else (), names)
                    cache.keep(keys[n], traces[n])
                    advance(1)
        except Exception as error:  # of transformers, torch, or of code that came with a model
            if type(error) is UniteError:  # of the cache
                raise
            _LOG.debug("responses cannot be traced", exc_info=error)
            progress.say(f"the steps of some responses could not be traced: {first_line(error)}")
        # After the handler, no traceback refers to the models any more.
        free_memory()
    return {n: trace for n, trace in sorted(traces.items()) if trace.get("steps")}


def _decode(
    ensemble: Ensemble, task: Task, inference: InferenceConfig, numbers: Sequence[int]
) -> Iterator[tuple[int, Generation]]:
    """Decode the responses to some questions again, with their traces."""
    from ensemble.decode.settings import Batch, Settings

    size = min(inference.batch_size or MOST_PROMPTS, MOST_PROMPTS)
    settings = Settings(inference.limit(task), task.stop)
    batch = Batch(size, trace=True)
    prompts = [ensemble.encode(task.examples[n].model_input) for n in numbers]
    for place, generation in ensemble.generate_each(prompts, settings, batch):
        yield numbers[place], generation


def choose(together: Profile, members: Sequence[Profile], single: Profile) -> list[int]:
    """Choose the questions to trace, by number: the first of each kind."""
    changes = [joint.score - alone.score for joint, alone in zip(together.answers, single.answers, strict=True)]
    answered = [n for n, answer in enumerate(together.answers) if answer.error is None and answer.text]
    corrected = [n for n in answered if changes[n] > 0][:OF_A_KIND]
    spoiled = [n for n in answered if changes[n] < 0][:OF_A_KIND]
    left = [n for n in answered if n not in (*corrected, *spoiled)]
    distinct = {n: len({_answer(member, n) for member in members}) for n in left}
    divided = [n for n in sorted(left, key=lambda n: -distinct[n]) if distinct[n] > 1][:OF_A_KIND]
    return sorted({*corrected, *spoiled, *divided})


def describe(steps: Sequence[Step], members: Sequence[str]) -> dict[str, Any]:
    """Describe a generation's steps for ``samples.jsonl``.

    The text of EOS is null. Bytes that are not complete characters are written as ``⟨E2 82⟩``.
    """
    return {
        "members": list(members),
        "steps": [_step(step) for step in steps[:MOST_STEPS]],
        "left_out": max(len(steps) - MOST_STEPS, 0),
    }


def _fits(trace: Any, members: Sequence[str]) -> bool:
    """Whether a stored value is what :func:`describe` returns for these members."""
    # The report checks the steps when it reads them; what is checked here is what the run itself reads.
    return isinstance(trace, dict) and trace.get("members") == list(members) and isinstance(trace.get("steps"), list)


def _answer(member: Profile, n: int) -> str | None:
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
