"""The page: the sections are computed and drawn first, and then put into one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ensemble.common import text
from ensemble.common.files import write_text
from ensemble.errors import InputError
from reports.charts.svg import plain_style
from reports.report_data import ReportData
from reports.script_data import script_data
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
