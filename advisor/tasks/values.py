r"""The values that a loaded task consists of.

    >>> example.prompt, example.reference
    ('Question: Ann has 2 pens and buys 3. How many has she?\nAnswer:', '5')
    >>> task.score(example, " 2 + 3 = 5. The answer is 5.")
    Score(value=1.0, extracted='5')

Not covered: generation (the profiler's), averages over a split (the profile's), corpus-level metrics.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from advisor.tasks import metrics, patterns
from ensemble.errors import InputError
from ensemble.models.spec import Sourced

READ_AT_MOST = 100_000  # characters: far above what max_new_tokens lets a model write, and little enough for any metric


@dataclass(frozen=True, slots=True)
class Example:
    """One question of a task.

    Attributes:
        id: Unique within its split: the record's own, else ``<split>-<index>``, counted from 0 in the data file.
        prompt: The whole text that a model continues: ``Task.prefix`` and the question.
        question: The rendered question alone, without instructions and shots.
        reference: The accepted text, or all accepted texts where the task gives a list.
        choices: The options of a choice task, labelled A, B, ... in this order; empty for other tasks.
        group: The part of the task that the question belongs to (a subject of MMLU), for figures by part.
        source: The bare text that encoder-decoder models read; None for the prompt.
    """

    id: str
    prompt: str
    question: str
    reference: str | tuple[str, ...]
    choices: tuple[str, ...] = ()
    group: str | None = None
    source: str | None = None

    @property
    def asked(self) -> str | Sourced:
        """What the members are given, each of which takes its own part of it."""
        return self.prompt if self.source is None else Sourced(self.prompt, self.source)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The reference as a tuple, also where it is one text."""
        return (self.reference,) if isinstance(self.reference, str) else self.reference


@dataclass(frozen=True, slots=True)
class Score:
    """What a metric makes of one response.

    Attributes:
        value: 0 (wrong) to 1 (right).
        extracted: The answer as the metric read it, in one spelling ("1,234.0" is "1234"); None where it found none.
    """

    value: float
    extracted: str | None


@dataclass(frozen=True, slots=True)
class Signature:
    """How a number on this task came about; two numbers are comparable where their signatures are the same.

    Attributes:
        task: The task's name.
        metric: The metric's name.
        split: The split that was asked for.
        n: Questions.
        shots: Demonstrations before each question.
        seed: Of every draw: shots, dev sample, limit.
        prompt: First 12 hexadecimal digits of the SHA-256 of the templates, the stop strings and the rendered shots.
        versions: (package, version) of everything whose version can change a score.
    """

    task: str
    metric: str
    split: str
    n: int
    shots: int
    seed: int
    prompt: str
    versions: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        fields = [
            ("task", self.task),
            ("metric", self.metric),
            ("split", self.split),
            ("n", self.n),
            ("shots", self.shots),
            ("seed", self.seed),
            ("prompt", self.prompt),
            *self.versions,
        ]
        return "|".join(f"{key}:{value}" for key, value in fields)


class Scorer(Protocol):
    """Scores the responses of a task whose scores are another tool's."""

    def score(self, example: Example, response: str) -> Score:
        """Score one response. Never raises, whatever the text."""


@dataclass(frozen=True, slots=True)
class Task:
    """The questions of one split, and how responses to them are scored.

    Attributes:
        name: As in the task file, with ``:variant`` where one was asked for.
        metric: Name of a module of ``advisor.tasks.metrics``, or another tool's metric where there is a ``scorer``.
            Questions of ``choice`` are answered by the likelihood of their options.
        split: As asked for: ``dev``, ``held_out`` or a split of the data.
        examples: The questions: in the order of the file, or, under a limit, in the seeded order.
        stop: A response ends before the first of these.
        max_new_tokens: A response ends after so many tokens.
        shots: Demonstrations before each question.
        seed: Of every draw.
        prefix: Instructions and rendered shots: the start that all prompts share.
        extract: Regular expression that picks the answer out of a response, None to give the metric all of it.
        notes: What was left out of the data and why, a sentence each.
        fingerprint: SHA-256 of the definition, the split and every id, prompt, choice and reference.
        signature: How numbers on this task came about.
        delimiter: What stands between a prompt and an option whose likelihood is asked for.
        scorer: Scores responses in place of ``metric`` and ``extract``; None for tasks of our own format.
        allow_code_execution: Whether the user has allowed to run programs that models wrote.
    """

    name: str
    metric: str
    split: str
    examples: tuple[Example, ...]
    stop: tuple[str, ...]
    max_new_tokens: int
    shots: int
    seed: int
    prefix: str
    extract: str | None
    notes: tuple[str, ...]
    fingerprint: str
    signature: Signature
    delimiter: str = " "
    scorer: Scorer | None = None
    allow_code_execution: bool = False

    @property
    def runs_code(self) -> bool:
        """Whether scoring runs programs that models wrote."""
        return self.scorer is None and metrics.runs_code(self.metric)

    def check_allowed(self) -> None:
        """Make sure, before anything is run, that responses may be scored.

        Raises:
            InputError: Scoring runs programs that models wrote, and the user has not allowed that.
        """
        if self.runs_code and not self.allow_code_execution:
            raise InputError(
                f"{self.name} runs programs that models wrote, which a sandbox hinders from doing harm but cannot stop "
                "for certain; give --allow-code-execution to take that risk, or choose another task"
            )

    def score(self, example: Example, response: str) -> Score:
        """Score one response, whatever the text.

        Args:
            example: A question of this task.
            response: What the model wrote after the prompt; the part beyond 100,000 characters is not read.

        Raises:
            InputError: Scoring runs programs that models wrote, and the user has not allowed that.
            UniteError: Programs cannot be run here.
        """
        if self.scorer is not None:
            return self.scorer.score(example, response[:READ_AT_MOST])
        self.check_allowed()
        text: str | None = response[:READ_AT_MOST]
        if self.extract is not None:
            text = patterns.find(self.extract, response[:READ_AT_MOST])
        if text is None:
            return Score(0.0, None)
        metric = metrics.get_metric(self.metric, allow_code_execution=self.allow_code_execution)
        value, extracted = metric.score(text, example.accepted, example.choices)
        return Score(value, extracted)

    def score_all(self, responses: Sequence[tuple[Example, str]]) -> list[Score]:
        """Score many responses, each as ``score`` does; programs are run on all cores.

        Args:
            responses: Questions of this task, and what a model wrote.
        """
        if not self.runs_code:
            return [self.score(example, response) for example, response in responses]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda pair: self.score(*pair), responses))
