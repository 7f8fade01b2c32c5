"""Text on the terminal: the tables of a run on standard error, its conclusion on standard output, and a trace."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from advisor.advice.compared_models import gate_texts, shown_pairs
from advisor.run.evaluation import Evaluation
from advisor.run.figures import JudgeSection
from advisor.run.result import MEASURES, Result
from advisor.run.sentences import commands, on_split, on_strategy, summary
from ensemble.common.text import counted, shortened, visible
from reports.tables import (
    Cell,
    Table,
    as_text,
    compared_groups,
    compared_models,
    compared_pairs,
    held_out,
    leaderboard,
    methods,
    strategies,
)

if TYPE_CHECKING:
    from ensemble.step.trace import Step

_STYLES = {
    "recommended": "bold green",
    "together": "bold",
    "is-primary": "bold green",
    "is-selected": "green",
    "is-rejected": "yellow",
    "is-failed": "red",
}
_NOTES = 10  # rows of a table whose notes are printed; the report has all
_WARNINGS = 4
_NARROWEST = 16  # characters that a name keeps where the other columns need the room
_CANDIDATES = 5  # of a step in a trace: a union has up to 30, and those below are near 0


class _Name:
    """A name with its details below, whose words are shortened in the middle where the column has no room for them."""

    def __init__(self, cell: Cell, style: str) -> None:
        self._lines = [
            visible(cell.text) + (" *" if cell.tag else ""),
            *([visible(cell.detail)] if cell.detail else []),
        ]
        self._style = style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(2 * bool(n) + len(line) for n, line in enumerate(self._lines))
        return Measurement(min(longest, _NARROWEST), min(longest, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title, *details = self._lines
        yield Text(shortened(title, options.max_width), self._style)
        for line in details:
            words = [shortened(word, options.max_width - 2) for word in line.split(" ")]
            for part in Text(" ".join(words)).wrap(console, options.max_width - 2):
                yield Text("  ") + part


def draw(table: Table, width: int) -> RichTable:
    """Draw a table for a terminal of so many characters; intervals, and then columns, are left out to fit the names."""
    # The details of a name stand below it.
    columns = [each for each in as_text(table) if each.kind != "name" or each.where != "detail"]
    names = [cell for each in columns if each.kind == "name" for cell in each.cells]
    room = width - 3 - max((len(cell.text) + 2 * bool(cell.tag) for cell in names), default=0)
    shown: dict[int, int | None] = {}
    # What is always shown comes first, then its intervals, then what needs a wide terminal, and their intervals.
    for place in sorted(range(len(columns)), key=lambda place: columns[place].where):
        each = columns[place]
        # A head may have several lines, one for each word.
        size = max(map(len, [*each.head.split(), *(visible(cell.text) for cell in each.cells)]))
        if each.kind == "name":
            shown[place] = None
        elif not each.where or (size + 2 <= room and (place - 1 in shown or not each.where.endswith("detail"))):
            shown[place] = size
            room -= size + 2
    drawn = RichTable(title=_plain(table.title), title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    cells = []
    for place in sorted(shown):
        each = columns[place]
        side: Literal["left", "right"] = "right" if each.kind == "number" else "left"
        drawn.add_column(_plain(each.head), justify=side, width=shown[place])
        styles = [_STYLES.get(style, "") for style in table.styles]
        is_name = each.kind == "name"
        cells.append([*map(_Name, each.cells, styles)] if is_name else [_plain(cell.text) for cell in each.cells])
    for row in zip(*cells, strict=True):
        drawn.add_row(*row)
    if tags := {cell.tag for cell in names if cell.tag}:
        drawn.caption, drawn.caption_justify = _plain(f"* {', '.join(sorted(tags))}"), "left"
    return drawn


def print_tables(result: Result) -> None:
    """Print the leaderboard with the reasons, the ensemble beside its members, and the strategies on standard error."""
    console = Console(stderr=True, highlight=False)
    table = leaderboard(result)
    console.print(draw(table, console.width))
    if result.provenance.device:
        console.print(_plain(f"The models ran on {result.provenance.device} in {result.provenance.dtype}."))
    _print_notes(table, console)
    if groups := next((candidate.groups for candidate in result.candidates if candidate.groups), None):
        console.print(
            f"Points are the mean over all questions (micro); macro is the mean over {len(groups)} groups of "
            "questions. result.json has the points of each group."
        )
    by_tokens = any(pair.length_unit == "tokens" for pair in result.pairs)
    if by_tokens and result.rules.think is None and any(each.reason_code == "length" for each in result.candidates):
        console.print("--think apart lets each model think alone: then only the lengths of the answers are compared.")
    tables = []
    if result.ensemble:
        tables.append(held_out(result.ensemble, result.measure))
    if result.strategies:
        tables.append(strategies(result))
    for table in tables:
        console.print()
        console.print(draw(table, console.width))
    _print_judge(result.judge, console)


def print_methods(evaluation: Evaluation) -> None:
    """Print methods side by side, on standard output."""
    console = Console(highlight=False)
    table = methods(evaluation, MEASURES[evaluation.judge.mode if evaluation.judge else ""])
    console.print(draw(table, console.width))
    apart = evaluation.think and any(each.level == "token" and not each.left_out for each in evaluation.methods)
    drawn = "take the tokens of the set" if apart else "the set has members"
    console.print(
        "p: of no gain over the best single model, corrected for the number of methods (Holm). Joint steps: steps in "
        "which several members decided. Entries: probabilities that a step looks at. self-consistency: the majority of "
        f"the best single model over as many drawn responses as {drawn}."
    )
    _print_notes(table, console)
    _print_judge(evaluation.judge, console)


def print_conclusion(result: Result) -> None:
    """Print what to run, how sure it is, what it costs, the warnings and the verdict, on standard output."""
    console = Console(highlight=False)
    advice, recommendation = result.advice, result.advice.recommendation
    lines = [f"{name}: {sentence}" for name, sentence in summary(result).items()]
    lines += _some([f"Warning: {warning}" for warning in advice.warnings])
    if result.can_decode or recommendation is None:
        lines.append(advice.text)
    for line in lines:
        # A file or a program gets each as one line.
        console.print(_plain(line), soft_wrap=not console.is_terminal)


def print_next(result: Result, report: Path) -> None:
    """Print where the report is, and the commands that use the run, on standard output."""
    console = Console(highlight=False)
    recommendation = result.advice.recommendation
    link = Style(link=report.absolute().as_uri())
    console.print(Text.assemble("Report: ", (visible(str(report)), link)), soft_wrap=True)
    if recommendation:
        run, serve, check = commands(result, shlex.quote(str(report.parent)), "QUESTION", "FILE")
        console.print(_plain(f"Use it: {run}, or {serve}. Does it still hold? {check}"), soft_wrap=True)


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print the models, the pairs, and the groups of a single pair, on standard output."""
    console = Console(highlight=False)
    pairs = shown_pairs(comparison)
    tables = [compared_models(comparison), compared_pairs(comparison, pairs)]
    if len(pairs) == 1 and pairs[0]["groups"]:
        tables.append(compared_groups(pairs[0], comparison["confidence"]))
    for table in tables:
        console.print(draw(table, console.width))
    for sentence in (*comparison["text"], *gate_texts(comparison)):
        # In a pipe a sentence stays one line, so that programs find it.
        console.print(_plain(sentence), soft_wrap=not console.is_terminal)


def _print_judge(judged: JudgeSection | None, console: Console) -> None:
    """Print how far a judge can be trusted, from the last split; the report has the others and the win rates."""
    if judged is None:
        return
    last = judged.splits[-1]
    console.print()
    console.print(_plain(f"Judge {judged.judges[0]}, {last.split} questions; points are {MEASURES[judged.mode]}s."))
    for sentence in (*on_split(judged, last), *map(on_strategy, judged.head_to_head)):
        console.print(_plain(sentence), soft_wrap=True)


def trace_lines(steps: Sequence[Step], names: Sequence[str]) -> Iterator[str]:
    """A trace as text: for each step its token, and the most likely candidates of the union."""
    names = [visible(name) for name in names]
    for number, step in enumerate(steps, start=1):
        emitted = "<eos>" if step.data is None else repr(visible(step.data.decode(errors="replace")))
        yield f"step {number}: {emitted}"
        for place in step.likeliest(_CANDIDATES):
            candidate = step.candidates[place]
            mark = "*" if place == step.chosen else " "
            # Where the primary decides alone, a step has fewer probabilities than names.
            shares = "  ".join(
                f"{name} {100 * p:5.1f}%" for name, p in zip(names, candidate.probabilities, strict=False)
            )
            members = ", ".join(names[n] for n in candidate.wanted_by)
            text = repr(visible(candidate.text))
            yield f"  {mark} {100 * candidate.mean:5.1f}%  {text:16} {shares}   (top k of {members})"


def _print_notes(table: Table, console: Console) -> None:
    """Print the notes of the first rows that have some."""
    noted = [cell for row in table.rows for cell in row if cell.notes]
    for cell in noted[:_NOTES]:
        line = Text.assemble((visible(cell.text), "bold"), f": {visible(' '.join(cell.notes))}")
        # A file or a program gets each as one line.
        console.print(line, soft_wrap=not console.is_terminal)
    if len(noted) > _NOTES:
        console.print(f"The report has notes on {counted(len(noted) - _NOTES, 'more row')}.")


def _some(warnings: Sequence[str]) -> list[str]:
    more = len(warnings) - _WARNINGS
    rest = [f"The report has {counted(more, 'more warning')}."] if more > 0 else []
    return [*warnings[:_WARNINGS], *rest]


def _plain(text: str) -> Text:
    # Models and data are untrusted: their text must not control the terminal, nor count as markup of rich.
    return Text(visible(text))
