r"""A loaded task: its questions, and the score of a response.

    >>> example.prompt, example.reference
    ('Question: Ann has 2 pens and buys 3. How many has she?\nAnswer:', '5')
    >>> task.score(example, " 2 + 3 = 5. The answer is 5.")
    Score(value=1.0, extracted='5')

Not covered: generation and averages over a split (see `advisor.models`).
"""

from __future__ import annotations

import hashlib
import json
import os
import string
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.tasks import metrics
from advisor.tasks.templates import find_answer
from ensemble.errors import InputError
from ensemble.models.prompts import Dialogue, Sourced

if TYPE_CHECKING:
    from advisor.tasks.schema import Rubric, Scoring
    from ensemble.decode.settings import Settings
    from ensemble.models.prompts import PromptTemplate

# Characters of a response that are scored. Far above what max_new_tokens allows, and small enough for every metric.
MAX_RESPONSE = 100_000

LM_EVAL = "lm_eval:"
"""What the names of lm-eval's tasks begin with."""
JUDGE = "judge"
"""The metric of tasks whose responses another model grades or compares."""


@dataclass(frozen=True, slots=True)
class Example:
    """One question of a task."""

    # Unique within its split: the record's id, else ``<split>-<index>``, counted from 0 in the data file. For a
    # turn of a conversation its number follows: ``81:1``.
    id: str
    # The whole text that a model continues: instructions, shots and the question. Of a later turn only what the
    # user says in it.
    prompt: str
    question: str  # the rendered question alone, without instructions and shots
    # The accepted text, or all accepted texts where the task gives a list; empty if a judge needs none.
    reference: str | tuple[str, ...]
    # The options of a choice task, labelled A, B, ... in this order; empty for other tasks.
    choices: tuple[str, ...] = ()
    # The part of the task that the question belongs to (a subject of MMLU), for figures by part.
    group: str | None = None
    source: str | None = None  # the bare text that encoder-decoder models read; None if they read the prompt
    # What the question shares with others, for example its passage: tests take these questions together. None if
    # the question is independent of all others.
    cluster: str | None = None
    # For a later turn of a conversation, the id of the turn before it, which is right before it in the task.
    earlier: str | None = None
    # What the user and the model said before, oldest first; known only when the model has answered.
    exchanges: tuple[tuple[str, str], ...] = ()
    # The fields of its record, for the own prompts of models.
    fields: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)
    own_prompts: Mapping[str, str] = field(default_factory=dict, hash=False)  # by the name of the model

    @property
    def prefix(self) -> str:
        """Instructions and rendered shots: the prompt before the question."""
        return self.prompt.removesuffix(self.question)

    @property
    def model_input(self) -> str | Sourced | Dialogue:
        """The input of all members: causal models read the prompt, encoder-decoder models the source."""
        if self.exchanges:
            return Dialogue(self.exchanges, self.prompt)
        if self.source is None and not self.own_prompts:
            return self.prompt
        return Sourced(self.prompt, self.source, self.own_prompts)

    def prompt_of(self, model: str) -> str:
        """The whole text that a model continues."""
        return self.own_prompts.get(model, self.prompt)

    @property
    def estimated_tokens(self) -> float:
        """Tokens of the prompt where no tokenizer counts them: a token has about four characters."""
        return len(self.prompt) / 4

    @property
    def accepted(self) -> tuple[str, ...]:
        """The reference as a tuple, also where it is one text."""
        return (self.reference,) if isinstance(self.reference, str) else self.reference


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one response."""

    value: float  # 0 (wrong) to 1 (right)
    # The answer that the metric read, in one spelling ("1,234.0" is "1234"); None if it found no answer.
    extracted: str | None
    # Why there is no answer, where JSON was looked for: with the line and the column at which it is broken.
    problem: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Task:
    """The questions of one split, and the way to score responses to them."""

    name: str  # as in the task file, with ``:variant`` if the user chose one
    # Name of a module of ``advisor.tasks.metrics``, or of another tool's metric if ``scorer`` is given. Questions
    # of ``choice`` are answered by the likelihood of their options.
    metric: str
    split: str  # the split that the user named: ``dev``, ``held_out`` or a split of the data
    examples: tuple[Example, ...]  # the questions, in the order of the file; with a limit, in the seeded order
    stop: tuple[str, ...]  # a response ends before the first of these texts
    max_new_tokens: int  # a response ends after this number of tokens
    shots: int  # demonstrations before each question
    seed: int  # seed of every draw
    # What picks the answer out of a response: ``json``, ``tool_call`` or a regular expression; None gives the
    # metric the whole response.
    extract: str | None
    notes: tuple[str, ...]  # what was left out of the data and why, one sentence each
    fingerprint: str  # SHA-256 of the definition, the split and every id, prompt, choice and reference
    # First 12 hexadecimal digits of the SHA-256 of the templates, the stop strings and the rendered shots.
    prompt_digest: str = ""
    versions: tuple[tuple[str, str], ...] = ()  # (package, version) of everything whose version can change a score
    delimiter: str = " "  # text between a prompt and an option whose likelihood is computed
    scoring: Scoring = "texts"  # what decides between the options of a choice task
    # Scores responses instead of ``metric`` and ``extract``, for tasks of lm-eval; None for task files.
    scorer: Callable[[Example, str], Score] | None = None
    allow_code_execution: bool = False  # whether the user allows programs that models wrote to run
    rubric: Rubric | None = None  # how a judge grades the responses; None for other metrics
    template: PromptTemplate | None = None  # how the prompts are made, for production; None for tasks of lm-eval
    origin: str | None = None  # the data set of the hub and its commit, ``ORG/NAME@COMMIT``; None for other data
    # The user's files that it was read from, by their paths from the task file's folder.
    files: Mapping[str, Path] = field(default_factory=dict, repr=False, compare=False)
    # How the prompts of the models are made that have their own, by name.
    templates: Mapping[str, PromptTemplate] = field(default_factory=dict, hash=False)
    # Those of a model that is asked alone.
    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def signature(self) -> str:
        """How a number on this task was made; two numbers are comparable if their signatures are equal."""
        parts = {"task": self.name, "metric": self.metric, "split": self.split, "n": len(self.examples)}
        parts |= {"shots": self.shots, "seed": self.seed, "prompt": self.prompt_digest}
        return "|".join(f"{key}:{value}" for key, value in (*parts.items(), *self.versions))

    @property
    def settings(self) -> Settings:
        """How responses to the questions are decoded: the likeliest token at each step, or draws by the task's seed."""
        from ensemble.decode.settings import Settings

        seed = self.seed if self.temperature else 0
        return Settings(self.max_new_tokens, self.stop, self.temperature, self.top_p, seed)

    def continuations(self, example: Example) -> list[str]:
        """The texts after a question of a choice task whose log-probabilities decide, one for each option."""
        letters = self.scoring == "letters"
        options = string.ascii_uppercase[: len(example.choices)] if letters else example.choices
        return [f"{self.delimiter}{option}" for option in options]

    def likeliest(self, example: Example, logprobs: Sequence[float]) -> str:
        """The option that a model chooses by the log-probability of each of its :meth:`continuations`."""
        lengths = [len(choice) if self.scoring == "normalised" else 1 for choice in example.choices]
        values = [logprob / length for logprob, length in zip(logprobs, lengths, strict=True)]
        # The first of equal ones, as in lm-eval.
        return example.choices[max(range(len(values)), key=values.__getitem__)]

    @property
    def is_relative(self) -> bool:
        """Whether the score of a response depends on the responses of the other candidates."""
        return self.rubric is not None and self.rubric.mode == "pairwise"

    @property
    def runs_code(self) -> bool:
        """Whether scoring runs programs that models wrote."""
        return self.scorer is None and metrics.runs_code(self.metric)

    def check_allowed(self) -> None:
        """Check, before any model runs, that programs which models wrote may run, if scoring runs them."""
        if self.runs_code and not self.allow_code_execution:
            raise InputError(
                f"{self.name} runs programs that models wrote; a sandbox limits the harm but cannot rule it out; "
                "give --allow-code-execution to take that risk, or choose another task"
            )

    def score(self, example: Example, response: str) -> Score:
        """Score what a model wrote after the prompt of a question, of which the first 100,000 characters are read.

        It is an InputError where a judge scores, or where programs would run that the user does not allow, and a
        UniteError where this system cannot run programs.
        """
        text = response[:MAX_RESPONSE]
        if self.scorer is not None:
            return self.scorer(example, text)
        self.check_allowed()
        metric = metrics.get_metric(self.metric, allow_code_execution=self.allow_code_execution)
        answer, problem = read_answer(self.metric, self.extract, text)
        if answer is None:
            return Score(0.0, None, problem)
        return Score(*metric.score(answer, example.accepted, example.choices))

    def corpus_score(self, texts: Mapping[str, str | None]) -> tuple[float, tuple[float, float]] | None:
        """The score of all responses together in points, and its 95% interval, for BLEU and chrF; None for others.

        The responses are by the ids of their questions; a missing one counts as an empty text.
        """
        if self.scorer is not None or self.metric not in metrics.COMPARING:
            return None
        from advisor.tasks.metrics.bleu import corpus_score  # here, since sacrebleu takes half a second to load

        responses = [(texts.get(example.id) or "")[:MAX_RESPONSE] for example in self.examples]
        return corpus_score(self.metric, responses, [example.accepted for example in self.examples])

    def score_all(self, responses: Sequence[tuple[Example, str]]) -> list[Score]:
        """Score responses to questions, each as ``score`` does; programs run on all cores.

        Responses that a judge grades have the score 0 until then; see :mod:`advisor.judge.judge`.
        """
        if self.rubric is not None:
            return [Score(0.0, None)] * len(responses)
        if not self.runs_code:
            return [self.score(example, response) for example, response in responses]
        # Threads are enough: each program has a separate process, and its thread only waits.
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # `map` keeps the order
            return list(pool.map(lambda pair: self.score(*pair), responses))


def read_answer(metric: str, extract: str | None, text: str) -> tuple[str | None, str | None]:
    """What a metric reads of a response; None, and the reason where JSON was expected, if that is no answer.

    Where a pattern does not match there is no answer: the whole response does not take its place.
    """
    known = metrics.READERS.values()
    answer = text if extract is None or extract in known else find_answer(extract, text)
    reader = extract if extract in known else metrics.READERS.get(metric)
    if answer is None or reader is None:
        return answer, None
    try:
        return metrics.read_with(reader, answer), None
    except ValueError as error:
        return None, str(error)


def place_of_answer(metric: str, extract: str | None, text: str, answer: str) -> tuple[int, int] | None:
    """The beginning and the end of the answer that a task's metric read from a response; None if it is not found."""
    part = text if extract is None or extract in metrics.READERS.values() else find_answer(extract, text)
    if not part:
        return None
    place = metrics.place_of(metric, part, answer)
    # The last place: `last_number` is a pattern, too, and others find an answer at the end of a response.
    start = text.rfind(part)
    return None if place is None else (start + place[0], start + place[1])


def clusters_of(*tasks: Task) -> tuple[str, ...] | None:
    """The cluster of each question of some splits, one that has none alone; None if no question has one."""
    examples = [example for task in tasks for example in task.examples]
    if all(example.cluster is None for example in examples):
        return None
    # No label of a task or a log has a NUL character in front.
    return tuple(
        f"\0{number}" if example.cluster is None else example.cluster for number, example in enumerate(examples)
    )


def sha256(*parts: object) -> str:
    """SHA-256 of values that JSON can hold, in hexadecimal digits."""
    # In ASCII, since some responses hold half a surrogate pair, which UTF-8 cannot encode.
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()


def fingerprint(definition: str, split: str, examples: Sequence[Example]) -> str:
    """SHA-256 of the text of a task's definition, the split and its questions; groups and clusters change no score."""
    # The source is added only where a task has one, so that tasks without it keep their old fingerprint.
    questions = (
        [example.id, example.prompt, example.choices, example.accepted]
        + ([] if example.source is None else [example.source])
        for example in examples
    )
    return sha256(definition, split, *questions)
