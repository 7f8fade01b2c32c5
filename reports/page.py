"""The page: the sections are computed and drawn first, and then put into one self-contained HTML file.

The data of its script is one JSON block, in which no character can end the block or start markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ensemble.common import text
from ensemble.common.files import write_text
from ensemble.errors import InputError
from reports.charts.svg import plain_style
from reports.question_rows import KINDS, QuestionRow, model_columns
from reports.report_data import TAGS, ReportData, ShownExample, ShownResponse, StepTrace, joint_name
from reports.sections import (
    accuracy_map,
    cost,
    ensemble,
    examples,
    group_models,
    judge,
    leaderboard,
    lengths,
    methods,
    pairs,
    pareto,
    provenance,
    questions,
    strategies,
    verdict,
)

# The sections in the order of the page.
SECTIONS: tuple[tuple[str, str, Callable[[ReportData], dict[str, Any] | None] | None], ...] = (
    # Name of the template, title in the contents (none for the verdict, which is above them), and function of the
    # template's values (none where `result` is enough).
    ("verdict", "", verdict.values),
    ("pareto", "Accuracy and cost", pareto.values),
    ("strategies", "Strategies", strategies.values),
    ("groups", "Groups", strategies.groups),
    ("group_models", "Groups and models", group_models.values),
    ("prediction", "Prediction", ensemble.prediction),
    ("looks", "Looks", ensemble.looks),
    ("judge", "Judge", judge.values),
    ("set", "The set", verdict.decoded_set),
    ("ensemble", "Together and alone", ensemble.values),
    ("methods", "Methods", methods.values),
    ("leaderboard", "Leaderboard", leaderboard.values),
    ("map", "Map", accuracy_map.values),
    ("pairs", "Pairs", pairs.values),
    ("lengths", "Lengths", lengths.values),
    ("cost", "Time", cost.values),
    ("questions", "Questions", questions.values),
    ("examples", "Examples", examples.values),
    ("provenance", "Provenance", provenance.values),
)

_TEMPLATES = Path(__file__).parent / "templates"
_STYLES = ("style.css", "figures.css", "explorer.css", "steps.css", "print.css")
_SCRIPTS = (
    "theme.js",
    "make.js",
    "save.js",
    "tables.js",
    "limits.js",
    "matrices.js",
    "steps.js",
    "explorer.js",
    "questions.js",
)
_SMALL_SCRIPTS = ("theme.js", "tables.js")
# U+2028 and U+2029 end a line in older JavaScript.
_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def write_page(path: Path, report: ReportData) -> Path:
    """Write the report to a file, and return its path; see :func:`reports.write_report`."""
    return write_html(path, render(report))


def write_html(path: Path, content: str) -> Path:
    """Write a page to a file, whole or not at all, and return its path.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        write_text(path, content)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); check the folder's permissions and space"
        ) from error
    return path


def section_values(report: ReportData) -> dict[str, dict[str, Any]]:
    """Return the templates' values of the sections that the run has something to show for, by name."""
    # Once for all figures: it replaces some hundred settings.
    with plain_style():
        computed = {name: get(report) if get else {} for name, _, get in SECTIONS}
    return {name: values for name, values in computed.items() if values is not None}


@cache  # it keeps the compiled templates, and a folder of runs has many reports
def make_environment() -> Environment:
    """The templates, with the filters of the report."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,  # a wrong name in a template is an error and not an empty text
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Drawings are not escaped again: the XML writer has escaped their text.
    environment.filters |= {**text.FILTERS, "drawn": Markup}
    return environment


def render(report: ReportData) -> str:
    """Return the report as HTML."""
    environment = make_environment()
    result, values = report.result, section_values(report)
    sections = {
        name: Markup(environment.get_template(f"sections/{name}.html.j2").render(result=result, **values[name]))
        for name in values
    }
    # Only this package's own files, and text that was escaped by other means, are marked as safe.
    style, script = contents(*_STYLES), contents(*_SCRIPTS)
    return environment.get_template("page.html.j2").render(
        result=result,
        report=report,
        headline=verdict.headline(result),
        sections=sections,
        titles=[(name, title) for name, title, _ in SECTIONS if title and name in sections],
        style=Markup(style),
        script=Markup(script),
        # The policy allows exactly this style and this script, so that injected ones cannot run.
        style_hash=content_hash(style),
        script_hash=content_hash(script),
        data=Markup(script_data(report)),
    )


def write_small_page(path: Path, template: str, **values: Any) -> Path:
    """Write a page without sections, from its template and the template's values, and return its path.

    Raises:
        InputError: The file cannot be written.
    """
    style, script = contents(*_STYLES), contents(*_SMALL_SCRIPTS)
    page = (
        make_environment()
        .get_template(template)
        .render(
            **values,
            style=Markup(style),
            script=Markup(script),
            style_hash=content_hash(style),
            script_hash=content_hash(script),
        )
    )
    return write_html(path, page)


def contents(*names: str) -> str:
    """The style sheets or scripts of these names, one after the other."""
    return "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in names)


def content_hash(content: str) -> str:
    """The hash by which the page's security policy allows a style or a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


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
        "examples": [_example_data(example) for example in samples.examples] if samples else [],
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


def _example_data(example: ShownExample) -> dict[str, Any]:
    return {
        "id": example.id,
        "split": example.split,
        "ask": example.question,
        "prompt": example.prompt,
        "reference": example.reference,
        "tags": example.tags,
        "responses": [_response(response) for response in example.all_responses],
        **({} if example.taken is None else {"taken": example.taken}),
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
    data |= {"place": response.place} if response.place else {}
    data |= {"differs": response.differs} if response.differs else {}
    data |= {"end": response.finish_reason} if response.finish_reason in ("length", "error") else {}
    return data | ({"error": response.error} if response.error else {})
