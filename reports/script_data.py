"""The data of the page's script: one JSON block, in which no character can end the block or start markup."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from reports.question_rows import KINDS, QuestionRow, model_columns
from reports.report_data import ReportData, joint_name
from reports.shown_samples import TAGS, ShownExample, ShownResponse, StepTrace

# U+2028 and U+2029 end a line in older JavaScript.
_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def script_data(report: ReportData) -> str:
    """Return the JSON for the map's limits and the example explorer, safe inside a ``script`` element."""
    result, samples = report.result, report.samples
    data = {
        "rules": {
            "maxGap": result.rules.max_gap,
            "maxRatio": result.rules.max_length_ratio,
            "maxModels": result.rules.max_models,
            "unit": result.length_unit,
        },
        "candidates": [
            {
                "name": candidate.name,
                "accuracy": candidate.accuracy,
                "length": candidate.mean_length,
                "failed": candidate.status == "failed",
                **({"tokens": candidate.mean_tokens} if candidate.mean_tokens is not None else {}),
                **({"thinks": 1} if candidate.thinks else {}),
            }
            for candidate in result.candidates
        ],
        "joint": joint_name(result),
        "tags": TAGS,
        "opening": samples.opening if samples else "",
        "examples": [_example(example) for example in samples.examples] if samples else [],
        "questions": _questions(samples.questions) if samples and samples.questions and not result.is_graded else None,
    }
    # NaN is no JSON: a browser would refuse the whole block, and the page would lose its script.
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _questions(rows: Sequence[QuestionRow]) -> dict[str, Any]:
    # A run has up to 10,000 questions, so their signs are strings that the script cuts: a list would be three times
    # as long.
    models, bits = model_columns(rows), {kind: 1 << place for place, kind in enumerate(KINDS)}
    return {
        "models": models,
        "kinds": KINDS,
        "ids": [each.id for each in rows],
        "asks": [each.question for each in rows],
        "cells": "".join(each.cells[number] for each in rows for number in models),
        "strategy": "".join(each.strategy for each in rows),
        # A letter for the kinds of a question, of which several may hold.
        "flags": "".join(chr(ord("a") + sum(bits[kind] for kind in each.kinds)) for each in rows),
        "heldOut": sum(each.held_out for each in rows),
    }


def _example(example: ShownExample) -> dict[str, Any]:
    return {
        "id": example.id,
        "split": example.split,
        "ask": example.question,
        "prompt": example.prompt,
        "reference": example.reference,
        "tags": example.tags,
        "responses": [_response(response) for response in example.all_responses],
        **({} if example.taken is None else {"taken": example.taken}),
        **({} if example.joined is None else {"joined": _response(example.joined)}),
        **({"trace": _trace(example.trace)} if example.trace else {}),
    }


def _trace(trace: StepTrace) -> dict[str, Any]:
    # Three decimals keep the page small: a run has thousands of steps.
    steps = [
        [token, won_by, None if disagreement is None else round(disagreement, 3), *others]
        for token, won_by, disagreement, *others in trace.steps
    ]
    return {"members": trace.members, "left": trace.left_out, "steps": steps}


def _response(response: ShownResponse) -> dict[str, Any]:
    # 200 examples of 5 candidates have a thousand responses, so the page leaves out what most of them have.
    data: dict[str, Any] = {"by": response.candidate}
    data |= {"text": response.text} if response.text is not None else {}
    data |= {"length": response.length} if response.length is not None else {}
    data |= {"tokens": response.thinking_tokens} if response.thinking_tokens else {}
    data |= {"right": 1} if response.right else {}
    data |= {"score": response.score} if response.score not in (0, 1) else {}
    data |= {"extracted": response.extracted} if response.extracted is not None else {}
    data |= {"differs": response.differs} if response.differs else {}
    data |= {"end": response.finish_reason} if response.finish_reason in ("length", "error") else {}
    return data | ({"error": response.error} if response.error else {})
