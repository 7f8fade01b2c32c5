"""The prompts of a judge, and the verdicts in its answers.

The prompts are the questions of a task, so that a judge's answers are stored, resumed, batched and sent to servers as
those of any model. Responses are untrusted: they are values in the template, and never templates; a local judge's
control tokens are taken out of them; and a verdict is read from the judge's text alone, where it is no quotation, so
that a response which says ``[[A]]`` decides nothing by that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from advisor.records import Answer, join
from advisor.tasks.data_files import Record
from advisor.tasks.schema import Rubric
from advisor.tasks.task import JUDGE, Example, Score, Task
from advisor.tasks.templates import Template, find_answers
from ensemble.common.text import without_tokens

LONGEST_RESPONSE = 20_000
"""Characters of a response in a judge's prompt; the rest is left out. This is about 5,000 tokens."""
CUT = "\n[... cut]"
"""Stands where the rest of a long response is left out: without it a judge would take its end for the model's fault."""
_AGAIN = "\n\nWrite the verdict alone, once, in the form that is asked for above. Quote nothing."
"""Ends the prompt of a judge whose first text has no verdict that can be read."""


class Shown(NamedTuple):
    """What a judge sees: a question, one or two responses in this order, and the turn before; None for a first turn."""

    example: Example
    responses: tuple[str, ...]
    earlier: Shown | None = None

    @property
    def is_same(self) -> bool:
        """Whether a judge sees the same text twice, and in all turns before: then only the place could decide."""
        return len(set(map(_cut, self.responses))) == 1 and (self.earlier is None or self.earlier.is_same)


def judge_task(
    task: Task, rubric: Rubric, shown: Sequence[Shown], control: Sequence[str] = (), *, again: bool = False
) -> Task:
    """A judge's prompts as a task; `again` asks for the verdict alone, and `control` texts become spaces."""
    template = Template(rubric.prompt, file=task.name, key="judge.prompt")
    by_likelihood = rubric.verdict == "likelihood"
    examples = []
    for n, each in enumerate(shown):
        prompt = template.text(Record(_fields(rubric, each, control), f"question {each.example.id}"))
        prompt += _AGAIN if again else ""
        examples.append(Example(str(n), prompt, prompt, (), rubric.options if by_likelihood else ()))
    return replace(
        task,
        # The judge writes a text, which `scorer` reads, or it is asked for the likelihoods of options.
        metric="choice" if by_likelihood else JUDGE,
        scorer=partial(_read, rubric, shown),
        examples=tuple(examples),
        stop=(),
        max_new_tokens=rubric.max_new_tokens,
        scoring="texts",
        rubric=None,
    )


def verdict_of(rubric: Rubric, answer: Answer) -> float | None:
    """The score that a judge's answer gives: of the response, or of the first of two.

    With likelihoods it is the expected score, with the probability of each verdict as its weight (G-Eval: Liu et al.,
    2023, equation 1). It has no ties that come from rounding to whole grades, and in a comparison the preference for a
    place shifts the scores of both orders in opposite ways, so that it cancels in their mean. The likeliest verdict
    alone would be the same for nearly all pairs if a judge prefers one place.

    Returns:
        0 to 1; None if the judge failed, was cut off, or wrote nothing that can be read.
    """
    # What a cut text has so far may be a quotation, or a draft of the verdict.
    if answer.error is not None or answer.finish_reason == "length":
        return None
    if rubric.verdict == "text":
        return None if answer.extracted is None else answer.score
    known = {
        option: logprob for option, logprob in zip(rubric.options, answer.options, strict=True) if logprob is not None
    }
    most = max(known.values(), default=-math.inf)
    if most == -math.inf:
        return None
    # Less the largest one: the probabilities of long options may all be 0 in floating point.
    weights = {option: math.exp(logprob - most) for option, logprob in known.items()}
    expected = sum(weight * (rubric.value(option) or 0.0) for option, weight in weights.items())
    return min(1.0, expected / sum(weights.values()))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_RESPONSE else text[:LONGEST_RESPONSE] + CUT


def _fields(rubric: Rubric, shown: Shown, control: Sequence[str]) -> dict[str, Any]:
    """The fields of the template; the reference is null if the question has none."""
    names = ("response",) if rubric.mode == "single" else ("response_a", "response_b")
    turns: list[dict[str, Any]] = []
    each: Shown | None = shown
    while each is not None:
        texts = [without_tokens(_cut(text), control) for text in each.responses]
        reference = "\n".join(each.example.accepted) or None
        turn = {"question": each.example.question, "reference": reference, **dict(zip(names, texts, strict=True))}
        # From the last turn back to the first, as each knows only the one before it.
        turns.insert(0, turn)
        each = each.earlier
    return {**turns[-1], "turns": turns, "group": shown.example.group}


def _read(rubric: Rubric, shown: Sequence[Shown], prompt: Example, text: str) -> Score:
    """The only verdict in a judge's text.

    Several different ones are drafts or quotations. One that a response has, too, may be a quotation, unless the judge
    wrote nothing else: otherwise a response with every verdict in it could not be judged.
    """
    found = find_answers(rubric.pattern, text) or []
    values = {rubric.value(verdict) for _, verdict in found}
    value = values.pop() if len(values) == 1 else None
    alone = bool(found) and text.strip() == found[0][0].strip()
    if value is None or (not alone and _stands_in(rubric, value, shown[int(prompt.id)])):
        return Score(0.0, None)
    return Score(value, found[0][1])


def _stands_in(rubric: Rubric, value: float, shown: Shown | None) -> bool:
    """Whether a response, or one of a turn before, has a verdict."""
    while shown is not None:
        for response in map(_cut, shown.responses):
            found = find_answers(rubric.pattern, response)
            if found is None or any(rubric.value(verdict) == value for _, verdict in found):
                return True
        shown = shown.earlier
    return False


class Verdict(NamedTuple):
    """A judge's comparison of two responses to a question in one order, or its grade of one response."""

    question: str  # its id
    first: str  # the model or set whose response the judge read first, or alone
    second: str  # the other one; empty for a grade
    # 0 (worst) to 1 (best) of the first one, with 0.5 for a tie; None if it cannot be read.
    score: float | None


def name_of_set(method: str, models: Sequence[str]) -> str:
    """The name of a set in grades and matches: several sets may decode with the same method."""
    return f"{method} of {join(models)}"
