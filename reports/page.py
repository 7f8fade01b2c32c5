"""The page: the sections are computed and drawn first, and then put into one self-contained HTML file.

The data of its script is one JSON block, in which no character can end the block or start markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ensemble.common import text
from ensemble.common.files import write_text
from ensemble.errors import InputError
from reports.charts.axes import WIDE, both_widths, interval, linear_limits, mark, reference
from reports.charts.rows import add_scale, row_axes, write_value
from reports.charts.svg import COLOURS, markup, plain_style
from reports.report_data import TAGS, ReportData, joint_name, page_json
from reports.sections import ensemble, judge, models, provenance, questions, strategies
from reports.tables import compared_groups, compared_models, compared_pairs, has_baseline, pair_name

# The sections in the order of the page: what decides, what shows it, what it rests on. Each has the template's name,
# its subject, and what returns the template's values; `finding` among them is its title.
SECTIONS: tuple[tuple[str, str, Callable[[ReportData], dict[str, Any] | None]], ...] = (
    ("verdict", "", strategies.verdict),
    ("strategies", "Strategies", strategies.strategies),
    ("examples", "Examples", questions.examples),
    ("models", "Models", models.models),
    ("groups", "Groups", strategies.groups),
    ("set", "Decoding together", ensemble.decoded_set),
    ("judge", "Judge", judge.judge),
    ("lengths", "Lengths", models.lengths),
    ("provenance", "Provenance", provenance.provenance),
)

_TEMPLATES = Path(__file__).parent / "templates"
STYLES = ("style.css", "figures.css", "explorer.css", "steps.css", "print.css")
_SCRIPTS = (
    "theme.js",
    "make.js",
    "save.js",
    "tables.js",
    "matrices.js",
    "steps.js",
    "explorer.js",
    "questions.js",
)
SMALL_SCRIPTS = ("theme.js", "tables.js")


def write_page(path: Path, report: ReportData) -> Path:
    """Write the report to a file, and return its path; see :func:`reports.write_report`."""
    result, values = report.result, section_values(report)
    environment = make_environment()
    # Only this package's own files, and text that was escaped by other means, are marked as safe.
    sections = {
        name: Markup(environment.get_template(f"sections/{name}.html.j2").render(result=result, **values[name]))
        for name in values
    }
    return write_html(
        path,
        "page.html.j2",
        _SCRIPTS,
        result=result,
        report=report,
        headline=strategies.headline(result),
        verdict=sections["verdict"],
        sections=[
            (name, subject, values[name]["finding"], sections[name])
            for name, subject, _ in SECTIONS
            if subject and name in sections
        ],
        data=Markup(script_data(report)),
    )


def write_html(
    path: Path, template: str, scripts: Sequence[str] = (), styles: Sequence[str] = STYLES, **values: Any
) -> Path:
    """Write a page to a file, whole or not at all, and return its path; the template extends ``frame.html.j2``."""
    files = ([(_TEMPLATES / name).read_text(encoding="utf-8") for name in names] for names in (styles, scripts))
    style, script = map("".join, files)
    content = (
        make_environment()
        .get_template(template)
        .render(
            style=Markup(style),
            script=Markup(script),
            # The policy allows exactly this style and this script, so that injected ones cannot run.
            style_hash=_hash(style),
            script_hash=_hash(script),
            **values,
        )
    )
    try:
        write_text(path, content)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); check the folder's permissions and space"
        ) from error
    return path


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def section_values(report: ReportData) -> dict[str, dict[str, Any]]:
    """Return the templates' values of the sections that the run has something to show for, by name."""
    # Once for all figures: it replaces some hundred settings.
    with plain_style():
        computed = {name: get(report) for name, _, get in SECTIONS}
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


def script_data(report: ReportData) -> str:
    """Return the JSON for the example explorer and the table of questions, safe inside a ``script`` element."""
    result, samples = report.result, report.samples
    data = {
        "candidates": [{"name": candidate.name} for candidate in result.candidates],
        "joint": joint_name(result),
        "tags": TAGS,
        "opening": samples.opening if samples else "",
        "examples": samples.examples if samples else [],
        "questions": samples.questions if samples and samples.total and not result.is_graded else None,
    }
    return page_json(data)


_SHAPES = {"better": "ensemble", "worse": "rejected", "equal": "selected", "unclear": "selected"}


def write_comparison(path: Path, comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page of a comparison, in the form of ``--json``, with some of its pairs to a file; return its path."""
    with plain_style():
        figure = both_widths(lambda width: _draw(comparison, pairs, width))
    return write_html(
        path,
        "compare.html.j2",
        styles=("style.css", "figures.css"),
        comparison=comparison,
        pairs=pairs,
        with_baseline=has_baseline(comparison, pairs),
        models=compared_models(comparison),
        differences=compared_pairs(comparison, pairs),
        groups=[(pair, compared_groups(pair, comparison["confidence"])) for pair in pairs if pair["groups"]],
        headline=_headline(comparison, pairs),
        confidence=text.percent(comparison["confidence"]),
        figure=figure,
    )


def _headline(comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> str:
    if len(pairs) > 1:
        return f"{len(comparison['models'])} models on the same {comparison['n']:,} questions"
    (pair,) = pairs
    return text.verdict(pair["verdict"], pair["b"], pair["a"], comparison["margin"])


def _draw(comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]], width: int) -> str:
    """Draw the difference of each pair with its interval; the band is the margin of equality."""
    short = has_baseline(comparison, pairs)
    names = [pair_name(pair, with_baseline=short) for pair in pairs]
    margin = comparison["margin"]
    # Two names are too long beside a line.
    axes = row_axes(names, width, right=62, above=not short)
    ends = [end for pair in pairs for end in pair["difference_ci"]]
    add_scale(axes, "difference, points", linear_limits([*ends, -margin, margin], 0.04), 9 if width == WIDE else 5)
    axes.axvspan(-margin, margin, facecolor=COLOURS["band"], linewidth=0, zorder=0)
    reference(axes, 0)
    for y, (name, pair) in enumerate(zip(names, pairs, strict=True)):
        shape, (low, high) = _SHAPES[pair["verdict"]], pair["difference_ci"]
        interval(axes, low, high, y, shape)
        title = f"{name}: {text.difference(pair['difference'])} points, {text.difference_interval((low, high))}"
        mark(axes, pair["difference"], y, shape, title=title)
        write_value(axes, y, text.difference(pair["difference"]), 58)
    label = f"Differences of {len(pairs)} pairs with intervals, in points; the table has the numbers."
    return markup(axes, label)
