"""Text on the terminal: the tables of a run on standard error, its conclusion on standard output, and a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from reports.text import visible

if TYPE_CHECKING:
    from ensemble.step.trace import Step

# Only some tasks have these: a mean over groups needs groups, and calibration needs choices.
_DETAILS = {"accuracy_macro": ("macro", ".1f"), "ece": ("ECE", ".3f")}
_MARKS = {"primary": "bold green", "selected": "green", "rejected": "yellow", "failed": "red"}
_CANDIDATES = 5  # of a step in a trace: a union has up to 30, and those below are near 0


def print_tables(result: Mapping[str, Any]) -> None:
    """Print the leaderboard with the reasons, and the ensemble next to its members, on standard error."""
    console = Console(stderr=True, highlight=False)
    console.print(leaderboard(result))
    for candidate in result["candidates"]:
        console.print(Text.assemble((visible(candidate["model"]), "bold"), f": {visible(candidate['reason'])}"))
    if groups := next((candidate["groups"] for candidate in result["candidates"] if candidate.get("groups")), None):
        console.print(
            f"Points are the mean over all questions (micro); macro is the mean over {len(groups)} groups of "
            "questions. result.json has the points of each group."
        )
    if close := [candidate["model"] for candidate in result["candidates"] if candidate["fragile"]]:
        console.print(_plain(f"Close calls, which other questions could reverse: {', '.join(close)}."))
    if result["search"]:
        console.print()
        console.print(searched(result))
    if result["ensemble"]:
        console.print()
        console.print(held_out(result["ensemble"], result["alternatives"]))


def print_methods(evaluation: Mapping[str, Any]) -> None:
    """Print methods side by side, on standard output."""
    console = Console(highlight=False)
    console.print(methods_table(evaluation))
    console.print(
        "p: of no gain over the best single model, corrected for the number of methods (Holm). joint: steps in which "
        "several members decided. entries: probabilities that a step looks at. self-consistency: the majority of the "
        "best single model over as many drawn responses as the set has members."
    )
    for entry in evaluation["methods"]:
        if entry["left_out"]:
            console.print(_plain(f"{entry['method']} was left out: {entry['left_out']}"), soft_wrap=True)


def print_conclusion(result: Mapping[str, Any], report: Path) -> None:
    """Print the advice and the place of the report, on standard output."""
    console = Console(highlight=False)
    # A file or a program gets the advice as one line.
    console.print(_plain(result["advice"]["text"]), soft_wrap=not console.is_terminal)
    link = Style(link=report.absolute().as_uri())
    console.print(Text.assemble("Report: ", (visible(str(report)), link)), soft_wrap=True)


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


def leaderboard(result: Mapping[str, Any]) -> Table:
    """The candidates, best first, with the decisions of the rules."""
    task = result["task"]
    questions = f", {task['n']} {task['split']} questions" if task["n"] else ""
    table = _table(f"{task['name']}{questions}")
    details = [key for key in _DETAILS if any(candidate.get(key) is not None for candidate in result["candidates"])]
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
    """The sets that a search decoded on the dev questions, with their predicted accuracy."""
    task = result["task"]
    table = Table(title=_plain(f"Sets on {task['n']} {task['split']} questions"), title_justify="left", box=box.SIMPLE)
    table.add_column("set", overflow="fold")
    for column in ("points", "predicted"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    notes = {"greedy": "chosen by the rules", "put_forward": "[green]chosen", "error": "[red]failed"}
    for attempt in result["search"]:
        table.add_row(
            _plain(", ".join(attempt["models"])),
            _number(attempt["dev_accuracy"], ".1f"),
            _number(attempt["predicted"], ".1f"),
            ", ".join(text for key, text in notes.items() if attempt[key]),
        )
    return table


def held_out(ensemble: Mapping[str, Any], alternatives: Sequence[Mapping[str, Any]] = ()) -> Table:
    """The ensemble on the held-out questions, next to its members and to other uses of their answers."""
    table = _table(f"{ensemble['n']} held-out questions")
    for member in ensemble["members"]:
        table.add_row(_plain(member["model"]), _number(member["accuracy"], ".1f"), _interval(member["accuracy_ci"]))
    table.add_row(
        f"[bold]{ensemble['method']}", _number(ensemble["accuracy"], ".1f"), _interval(ensemble["accuracy_ci"])
    )
    for other in alternatives:
        table.add_row(f"or {other['method']}", _number(other["accuracy"], ".1f"), _interval(other["accuracy_ci"]))
    return table


def methods_table(evaluation: Mapping[str, Any]) -> Table:
    """Every member, every method, and self-consistency as the control, on the same questions."""
    best = evaluation["best_single"]
    title = f"{evaluation['task']}, {evaluation['n']} {evaluation['split']} questions, compared with {best} alone"
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
    # Models and data are untrusted: their text must not control the terminal, nor count as markup of rich.
    return Text(visible(text))


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _interval(interval: list[float] | None) -> str:
    # A dash and not a zero: a failed candidate has no accuracy.
    return "–" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
