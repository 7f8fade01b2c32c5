"""What the user sees while a run goes on, on standard error, and its conclusion, on standard output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.style import Style
from rich.table import Table
from rich.text import Text

from reports.text import visible

_DETAILS = {"accuracy_macro": ("macro", ".1f"), "ece": ("ECE", ".3f")}
"""Columns that only some tasks have: mean accuracy over the task's groups, and calibration of its choices."""
_MARKS = {"primary": "bold green", "selected": "green", "rejected": "yellow", "failed": "red"}


class Terminal:
    """A watcher who draws progress bars with the time left.

    Args:
        quiet: Draw and say nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bars: Progress | None = None
        self._stages = 0

    @contextmanager
    def stage(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        """See :class:`advisor.progress.Watcher`; stages that go on side by side have a bar each."""
        if self._bars is None:
            self._bars = _bars(self.console)
            self._bars.start()
        bars = self._bars
        self._stages += 1
        try:
            task = bars.add_task(visible(description), total=total)
            yield lambda done: bars.advance(task, done)
        finally:
            self._stages -= 1
            if not self._stages:
                bars.stop()
                self._bars = None

    def say(self, text: str) -> None:
        """See :class:`advisor.progress.Watcher`."""
        self.console.print(Text.assemble(("note ", "yellow"), visible(text)), soft_wrap=True)

    def show(self, result: Mapping[str, Any]) -> None:
        """The leaderboard with its reasons, and the ensemble beside its members."""
        self.console.print(leaderboard(result))
        for candidate in result["candidates"]:
            self.console.print(
                Text.assemble((visible(candidate["model"]), "bold"), f": {visible(candidate['reason'])}")
            )
        if groups := next((one["groups"] for one in result["candidates"] if one.get("groups")), None):
            self.console.print(
                f"Points are the mean over all questions (micro), macro is the mean over {len(groups)} groups of them; "
                "result.json has each group's."
            )
        if close := [candidate["model"] for candidate in result["candidates"] if candidate["fragile"]]:
            self.console.print(_plain(f"Close calls, which other questions could turn round: {', '.join(close)}."))
        if result["search"]:
            self.console.print()
            self.console.print(searched(result))
        if result["ensemble"]:
            self.console.print()
            self.console.print(held_out(result["ensemble"], result["alternatives"]))

    def compare(self, evaluation: Mapping[str, Any]) -> None:
        """Methods side by side, on standard output."""
        console = Console(highlight=False)
        console.print(methods_table(evaluation))
        console.print(
            "p: of no gain over the best single model, corrected for how many methods are compared (Holm). joint: "
            "steps in which several members decided. entries: probabilities looked at, a step. self-consistency: the "
            "best single model's own majority over as many drawn responses as there are members."
        )
        for entry in evaluation["methods"]:
            if entry["left_out"]:
                console.print(_plain(f"{entry['method']} was left out: {entry['left_out']}"), soft_wrap=True)

    def conclude(self, result: Mapping[str, Any], report: Path) -> None:
        """The result itself, on standard output: the verdict, and where the report is."""
        console = Console(highlight=False)
        console.print(_plain(result["advice"]["text"]), soft_wrap=not console.is_terminal)
        link = Style(link=report.absolute().as_uri())
        console.print(Text.assemble("Report: ", (visible(str(report)), link)), soft_wrap=True)


def _bars(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def leaderboard(result: Mapping[str, Any]) -> Table:
    """The candidates, best first, with what the rules decided."""
    task = result["task"]
    asked = f", {task['n']} {task['split']} questions" if task["n"] else ""
    table = _table(f"{task['name']}{asked}")
    details = [one for one in _DETAILS if any(candidate.get(one) is not None for candidate in result["candidates"])]
    for detail in details:
        table.add_column(_DETAILS[detail][0], justify="right")
    table.add_column("length", justify="right")
    table.add_column("cut off", justify="right")
    table.add_column("")
    for candidate in result["candidates"]:
        status = candidate["status"]
        table.add_row(
            _plain(candidate["model"]),
            _number(candidate["accuracy"], ".1f"),
            _interval(candidate["accuracy_ci"]),
            *(_number(candidate.get(detail), _DETAILS[detail][1]) for detail in details),
            _number(candidate["mean_length"], ".0f"),
            _number(candidate["truncated"], "d"),
            f"[{_MARKS[status]}]{status}",
        )
    return table


def searched(result: Mapping[str, Any]) -> Table:
    """The sets that were decoded on the dev questions, and what was expected of them."""
    task = result["task"]
    table = Table(title=_plain(f"Sets on {task['n']} {task['split']} questions"), title_justify="left", box=box.SIMPLE)
    table.add_column("set", overflow="fold")
    for column in ("points", "predicted"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    notes = {"greedy": "the rules' own", "put_forward": "[green]put forward", "error": "[red]failed"}
    for one in result["search"]:
        table.add_row(
            _plain(", ".join(one["models"])),
            _number(one["dev_accuracy"], ".1f"),
            _number(one["predicted"], ".1f"),
            ", ".join(text for key, text in notes.items() if one[key]),
        )
    return table


def held_out(ensemble: Mapping[str, Any], alternatives: Sequence[Mapping[str, Any]] = ()) -> Table:
    """The ensemble beside its members on the held-out questions, and beside other uses of their answers."""
    table = _table(f"{ensemble['n']} held-out questions")
    for member in ensemble["members"]:
        table.add_row(_plain(member["model"]), _number(member["accuracy"], ".1f"), _interval(member["accuracy_ci"]))
    table.add_row(
        f"[bold]{ensemble['method']}", _number(ensemble["accuracy"], ".1f"), _interval(ensemble["accuracy_ci"])
    )
    for one in alternatives:
        table.add_row(f"or {one['method']}", _number(one["accuracy"], ".1f"), _interval(one["accuracy_ci"]))
    return table


def methods_table(evaluation: Mapping[str, Any]) -> Table:
    """Every member, every method, and the control, on the same questions."""
    best = evaluation["best_single"]
    title = f"{evaluation['task']}, {evaluation['n']} {evaluation['split']} questions, against {best} alone"
    table = Table(title=_plain(title), title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold", min_width=16)
    for heading in ("points", "95%", "gain", "p", "ms/token", "joint", "entries"):
        table.add_column(heading, justify="right", no_wrap=True)
    for member in evaluation["members"]:
        table.add_row(*_scores(member["model"], member), "", "", *_costs(member))
    table.add_section()
    for entry in evaluation["methods"]:
        p_value = entry["p_value"] if entry["p_adjusted"] is None else entry["p_adjusted"]
        difference = _number(entry["delta"], "+.1f"), _number(p_value, ".3f")
        table.add_row(*_scores(entry["method"], entry), *difference, *_costs(entry))
    return table


def _scores(name: str, entry: Mapping[str, Any]) -> tuple[Text, str, str]:
    interval = entry["accuracy_ci"]
    return (
        _plain(name),
        _number(entry["accuracy"], ".1f"),
        "–" if interval is None else f"{interval[0]:.0f} to {interval[1]:.0f}",
    )


def _costs(entry: Mapping[str, Any]) -> tuple[str, ...]:
    share = entry.get("share_ensembled")
    return (
        _number(entry["ms_per_token"], ".2f"),
        "" if share is None else f"{100 * share:.0f}%",
        "" if not entry.get("handled_per_step") else f"{entry['handled_per_step']:.0f}",
    )


def _table(title: str) -> Table:
    table = Table(title=_plain(title), title_justify="left", box=box.SIMPLE)
    table.add_column("model", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("95% interval", justify="right", no_wrap=True)
    return table


def _plain(text: str) -> Text:
    """A text of somebody else's: no command to the terminal, and no markup, has an effect in it."""
    return Text(visible(text))


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _interval(interval: list[float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
