"""The page: everything is read and drawn first, and then put into one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ensemble.errors import InputError
from reports import words
from reports.costs import cost_rows, slowdown
from reports.data import script_data
from reports.evaluation import Evaluation
from reports.examples import TAGS, Example, Samples
from reports.figures import draw
from reports.matrices import known_measures
from reports.model import Candidate, Result
from reports.verdict import certainty, headline

_TEMPLATES = Path(__file__).parent / "templates"
_STYLES = ("style.css", "figures.css", "explorer.css", "steps.css")
_SCRIPTS = ("theme.js", "tables.js", "limits.js", "matrices.js", "steps.js", "explorer.js")

SHOWN_WITHOUT_SCRIPT = 12
"""Examples that are in the page itself, for readers without JavaScript; the script has all of them."""

MOST_BYTES_WITHOUT_SCRIPT = 150_000
"""Bytes of these together, about; they are in the page a second time."""

BYTES_OF_A_STEP = 300
"""Bytes that a step of a trace takes there, about."""

MOST_PAIRS = 1000
"""Pairs in the table; a hundred candidates have 4,950, and those with the best candidates come first."""

STATUS_WORDS = {"primary": "Primary", "selected": "Chosen", "rejected": "Left out", "failed": "Failed"}


@dataclass(frozen=True, slots=True)
class Bar:
    """An accuracy and its interval on a small scale, in percent of its width; ``floor`` is the lowest one allowed."""

    at: float
    low: float
    high: float
    floor: float


def write_page(path: Path, result: Result, samples: Samples | None, evaluation: Evaluation | None = None) -> Path:
    """Write the report to a file, and return its path; see :func:`reports.write_report`."""
    return _write_atomically(path, render(result, samples, evaluation))


def render(result: Result, samples: Samples | None, evaluation: Evaluation | None = None) -> str:
    """Return the report as HTML."""
    # Markup is what the template does not escape: this package's own text, and what was escaped by other means.
    style = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _STYLES)
    script = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    chosen = tuple(result.candidates[index].model for index in result.selected)
    # A set may have been chosen anew since its methods were evaluated.
    current = evaluation if evaluation is not None and evaluation.members == chosen else None
    figures, costs = draw(result, samples, current), cost_rows(result)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            result=result,
            samples=samples,
            evaluation=evaluation,
            current=current is not None,
            figures=figures,
            headline=headline(result),
            certainty=certainty(result),
            bars=_bars(result),
            columns=_columns(result),
            costs=costs,
            known_memory=any(row.cost.peak_memory is not None for row in costs),
            slowdown=slowdown(result.ensemble),
            pairs=result.pairs[:MOST_PAIRS],
            measures=known_measures(result),
            telling=_telling(samples),
            tags=TAGS,
            traced=sum(example.trace is not None for example in samples.examples) if samples else 0,
            status_words=STATUS_WORDS,
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash(style),
            script_hash=_hash(script),
            data=Markup(script_data(result, samples)),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "amount": words.amount,
        "chance": words.chance,
        "cost": words.cost,
        "difference": words.difference,
        "difference_interval": words.difference_interval,
        "drawn": Markup,  # for the drawings, whose text has been escaped by the XML writer
        "interval": words.interval,
        "length": words.length,
        "memory": words.memory,
        "p_value": words.p_value,
        "points": words.points,
        "ratio": words.ratio,
        "seconds": words.seconds,
        "sentence": _sentence,
        "share": words.share,
    }
    return environment


def _sentence(text: str) -> str:
    """Return a clause as a sentence."""
    capital = text[:1].upper() if text[1:2].isalpha() or text[1:2] == " " else text[:1]
    return capital + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".") if text else ""


def _bars(result: Result) -> dict[int, Bar]:
    known = [
        (each, each.accuracy, each.accuracy_ci or (each.accuracy,) * 2)
        for each in result.candidates
        if each.accuracy is not None
    ]
    if not known:
        return {}
    low, high = min(ends[0] for _, _, ends in known), max(ends[1] for _, _, ends in known)
    width = max(high - low, 1.0)
    primary = result.primary
    limit = primary.accuracy - result.rules.max_gap if primary and primary.accuracy is not None else low

    def place(value: float) -> float:
        return round(100 * min(max((value - low) / width, 0.0), 1.0), 2)

    return {each.index: Bar(place(at), place(ends[0]), place(ends[1]), place(limit)) for each, at, ends in known}


def _columns(result: Result) -> set[str]:
    """Return the optional columns of the leaderboard that have something to show."""

    def known(candidate: Candidate) -> dict[str, bool]:
        return {
            "truncated": candidate.truncated > 0,
            "errors": candidate.errors > 0,
            "tokens_per_second": candidate.cost.tokens_per_second is not None,
            "ece": candidate.ece is not None,
            "parameters": candidate.parameters is not None,
        }

    return {name for candidate in result.candidates for name, has in known(candidate).items() if has}


def _telling(samples: Samples | None) -> list[Example]:
    """Return the examples that say most, those with a trace first, then in the order of the tags."""
    if samples is None:
        return []
    order = {tag: place for place, tag in enumerate(TAGS)}

    def rank(example: Example) -> tuple[bool, int]:
        return example.trace is None, min((order[tag] for tag in example.tags), default=len(order))

    room, telling = MOST_BYTES_WITHOUT_SCRIPT, []
    for example in sorted(samples.examples, key=rank)[:SHOWN_WITHOUT_SCRIPT]:
        weight = example.weight + (BYTES_OF_A_STEP * len(example.trace.steps) if example.trace else 0)
        telling += [example] if weight <= room else []
        room -= weight if weight <= room else 0
    return telling


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _write_atomically(path: Path, text: str) -> Path:
    """Write a file that is there whole or not at all, with the permissions that any new file has."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="\n", dir=path.parent, prefix=".report-", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(text)
        try:
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); check the folder's permissions and space"
        ) from error
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
