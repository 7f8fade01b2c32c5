"""Text on the terminal: the tables of a run on standard error, its conclusion on standard output, and a trace."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from advisor.records import join, signed
from advisor.runs.judge_sentences import on_split, on_strategy
from advisor.runs.schema.judge import JudgeSection
from advisor.runs.schema.result import MEASURES
from advisor.runs.schema.strategy import StrategyKey
from advisor.strategies.strategy import Strategy
from ensemble.common.text import (
    chance,
    counted,
    duration,
    interval_name,
    of_thousand,
    p_value,
    price,
    shown,
    visible,
    why_not_shown,
)

if TYPE_CHECKING:
    from ensemble.step.trace import Step

# Only some tasks have these: a mean over groups needs groups, and calibration needs choices.
_DETAILS = {
    "mean_length": ("length", ".0f"),
    "accuracy_macro": ("macro", ".1f"),
    "corpus_score": ("corpus", ".1f"),
    "truncated": ("cut off", "d"),
    "ece": ("ECE", ".3f"),
}
_MARKS = {"primary": "bold green", "selected": "green", "rejected": "yellow", "failed": "red"}
_REASONS = 5  # of rejected candidates, and of failed ones; the report has all
_WARNINGS = 4
_CANDIDATES = 5  # of a step in a trace: a union has up to 30, and those below are near 0


def print_tables(result: Mapping[str, Any]) -> None:
    """Print the leaderboard with the reasons, the ensemble beside its members, and the strategies on standard error."""
    console = Console(stderr=True, highlight=False)
    console.print(leaderboard(result, console.width))
    provenance = result.get("provenance") or {}
    if provenance.get("device"):
        console.print(_plain(f"The models ran on {provenance['device']} in {provenance['dtype']}."))
    told, untold = _told(result["candidates"])
    for candidate in told:
        console.print(Text.assemble((visible(candidate["model"]), "bold"), f": {visible(candidate['reason'])}"))
    if untold:
        console.print(f"The report has the reasons of {counted(untold, 'more candidate')}.")
    recommended = result["advice"]["recommendation"]
    rejected = {each["model"] for each in result["candidates"] if each["status"] == "rejected"}
    if recommended and rejected & {*recommended["members"]}:
        console.print(
            "Selected and rejected are the decisions of the rules about the set that decodes together. Votes, cascades "
            "and routers may ask rejected models, too."
        )
    if groups := next((candidate["groups"] for candidate in result["candidates"] if candidate.get("groups")), None):
        console.print(
            f"Points are the mean over all questions (micro); macro is the mean over {len(groups)} groups of "
            "questions. result.json has the points of each group."
        )
    if close := [candidate["model"] for candidate in result["candidates"] if candidate["close_call"]]:
        console.print(_plain(f"Other questions could change what the rules decide on {join(close)}."))
    # A table with the set of the rules alone would say nothing new.
    if (prediction := result["prediction"]) and (prediction["choose"] != "rules" or not prediction["sets"][0]["rules"]):
        console.print()
        console.print(predicted(prediction, result["advice"]["confidence"]))
    if result["ensemble"]:
        console.print()
        console.print(held_out(result["ensemble"]))
    if result["strategies"]:
        console.print()
        console.print(strategies(result))
    _print_judge(result, console)


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
        if entry["note"]:
            console.print(_plain(f"{entry['method']}: {entry['note']}"), soft_wrap=True)
    _print_judge(evaluation, console)


def print_conclusion(result: Mapping[str, Any], report: Path) -> None:
    """Print what to run, how sure it is, what it costs, the warnings and the verdict, on standard output."""
    console = Console(highlight=False)
    advice = result["advice"]
    warnings = [f"Warning: {each}" for each in advice["warnings"]]
    lines = [*_shortened(warnings), advice["text"]]
    if recommendation := advice["recommendation"]:
        recommended = [f"Recommended: {recommendation['text']}", *_of_thousand(result)]
        lines = [*recommended, f"Shown by the test: {_shown(result)}", f"Cost: {_cost(recommendation)}", *lines]
    else:
        lines = ["Recommended: nothing yet, because no strategy was compared on held-out questions.", *lines]
    for line in lines:
        # A file or a program gets each as one line.
        console.print(_plain(line), soft_wrap=not console.is_terminal)
    link = Style(link=report.absolute().as_uri())
    console.print(Text.assemble("Report: ", (visible(str(report)), link)), soft_wrap=True)
    # Where the models of logs are is not known here.
    if recommendation and not (result.get("provenance") or {}).get("logs"):
        run = visible(shlex.quote(str(report.parent)))
        console.print(_plain(f"Use it: advisor run {run} PROMPT, or advisor serve {run}"), soft_wrap=True)


def _print_judge(result: Mapping[str, Any], console: Console) -> None:
    """Print how far a judge can be trusted, from the last split; the report has the others and the win rates."""
    if (section := result.get("judge")) is None:
        return
    judged = JudgeSection.model_validate(section)
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


def leaderboard(result: Mapping[str, Any], width: int = 1000) -> Table:
    """The candidates, best first, with the decisions of the rules.

    Args:
        result: The contents of ``result.json``.
        width: Of the terminal, in characters. Columns are left out where the names would not fit.
    """
    task, candidates = result["task"], result["candidates"]
    questions = f", {counted(task['n'], task['split'] + ' question')}" if task["n"] else ""
    table = _table(f"{task['name']}{questions}")
    known = [key for key in _DETAILS if any(candidate.get(key) for candidate in candidates)]
    # The names, points, interval and status take this much, with the spaces between them; a detail takes 8.
    room = width - max(len(visible(candidate["model"])) for candidate in candidates) - 36
    details = known[: max(room // 8, 0)]
    for detail in details:
        table.add_column(_DETAILS[detail][0], justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for candidate in candidates:
        status = candidate["status"]
        table.add_row(
            _plain(candidate["model"]),
            _number(candidate["accuracy"], ".1f"),
            _interval(candidate["accuracy_ci"]),
            *(_number(candidate.get(detail), _DETAILS[detail][1]) for detail in details),
            f"[{_MARKS[status]}]{status}",
        )
    return table


def strategies(result: Mapping[str, Any]) -> Table:
    """All strategies on the held-out questions, the best first; the recommended one is marked."""
    rows, recommendation = result["strategies"], result["advice"]["recommendation"]
    title = (
        f"Strategies, {counted(rows[0]['n'], 'held-out question')}, compared with {rows[0]['best_single_model']} alone"
    )
    table = _table(title, "strategy", interval=False)
    table.caption_justify = "left"
    for heading in ("expected", "measured", "shown", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        name = _plain(str(_strategy(row)))
        if recommendation and _is_same(row, recommendation):
            name.stylize("bold green")
            name.append(" *")
            table.caption = (
                "* recommended; gains in points, estimated from dev and held-out questions, so they are not just the "
                "differences of the points"
            )
        is_single = _strategy(row).IS_SINGLE
        table.add_row(
            name,
            _number(row["accuracy"], ".1f"),
            "–" if row["expected_gain"] is None else signed(row["expected_gain"]),
            signed(row["measured_gain"]),
            "–" if is_single else shown(row["shown"]),
            _number(row["calls_per_question"], ".1f"),
        )
    return table


def predicted(prediction: Mapping[str, Any], confidence: float) -> Table:
    """The sets that were decoded, that of the rules, and the most promising one, with their predicted gains.

    `confidence` is that of the run.
    """
    table = Table(title="Predicted gains", title_justify="left", box=box.SIMPLE)
    table.add_column("set", overflow="fold")
    for column in ("predicted", interval_name(confidence), "dev points", "measured"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for n, each in enumerate(prediction["sets"]):
        if n and not (each["rules"] or each["decoded"] or each["error"]):
            continue
        table.add_row(
            _plain(", ".join(each["models"])),
            signed(each["predicted_gain"]),
            _interval(each["predicted_gain_ci"]),
            "–" if each["dev_accuracy"] is None else _number(each["dev_accuracy"], ".1f"),
            "–" if each["measured_gain"] is None else signed(each["measured_gain"]),
            # The first row may have a candidate that the leaderboard calls rejected.
            ("chosen" if each["rules"] else "not chosen")
            + " by the rules"
            + (", [red]failed" if each["error"] else ""),
        )
    return table


def held_out(ensemble: Mapping[str, Any]) -> Table:
    """The ensemble on the held-out questions, next to its members."""
    table = _table(counted(ensemble["n"], "held-out question"))
    for member in ensemble["members"]:
        table.add_row(_plain(member["model"]), _number(member["accuracy"], ".1f"), _interval(member["accuracy_ci"]))
    table.add_row(
        f"[bold]{ensemble['method']}", _number(ensemble["accuracy"], ".1f"), _interval(ensemble["accuracy_ci"])
    )
    return table


def methods_table(evaluation: Mapping[str, Any]) -> Table:
    """Every member, every method, and self-consistency as the control, on the same questions."""
    best = evaluation["best_single_model"]
    questions = counted(evaluation["n"], f"{evaluation['split']} question")
    title = f"{evaluation['task']}, {questions}, compared with {best} alone"
    table = Table(title=_plain(title), title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold", min_width=16)
    for heading in ("points", "95%", "gain", "p", "ms/token", "joint", "entries"):
        table.add_column(heading, justify="right", no_wrap=True)
    for member in evaluation["members"]:
        table.add_row(*_scores(member["model"], member), "", "", *_costs(member))
    table.add_section()
    for entry in evaluation["methods"]:
        p_value = entry["p_value"] if entry["p_adjusted"] is None else entry["p_adjusted"]
        difference = "–" if entry["delta"] is None else signed(entry["delta"]), chance(p_value)
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


def _table(title: str, first: str = "model", *, interval: bool = True) -> Table:
    table = Table(title=_plain(title), title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    if interval:
        table.add_column("95% interval", justify="right", no_wrap=True)
    return table


def _told(candidates: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], int]:
    """The candidates whose reasons are printed, and the number of the others."""
    left = dict.fromkeys(("rejected", "failed"), _REASONS)
    told = []
    for candidate in candidates:
        status = candidate["status"]
        if left.get(status, 1) > 0:
            told.append(candidate)
        if status in left:
            left[status] -= 1
    return told, len(candidates) - len(told)


def _of_thousand(result: Mapping[str, Any]) -> list[str]:
    """The expected gain as right answers of 1,000, as a line; none if a question is not right or wrong."""
    recommendation = result["advice"]["recommendation"]
    gain, ends = recommendation["expected_gain"], recommendation["expected_gain_ci"]
    # Points of a judge, of BLEU and of chrF are means of grades, so they do not count right answers.
    is_graded = result.get("judge") is not None or any(
        candidate.get("corpus_score") is not None for candidate in result["candidates"]
    )
    if _strategy(recommendation).IS_SINGLE or is_graded:
        return []
    return [f"That is: {of_thousand(gain, ends)}"]


def _shown(result: Mapping[str, Any]) -> str:
    recommendation = result["advice"]["recommendation"]
    if _strategy(recommendation).IS_SINGLE:
        if len(result["strategies"]) == 1:
            return "nothing was tested, because this is the only strategy"
        return "the test compares the other strategies with this model"
    tests = sum(not _strategy(row).IS_SINGLE for row in result["strategies"])
    answer = shown(recommendation["shown"])
    row = next((row for row in result["strategies"] if _is_same(row, recommendation)), None)
    if row is None or row["p_adjusted"] is None:
        return answer
    alone, together = p_value(row["p_no_gain"]), p_value(row["p_adjusted"])
    p = alone if alone == together else f"{alone}; {together}"
    p += " after correction for several strategies" if tests > 1 else ""
    why = why_not_shown(recommendation["shown"], recommendation["expected_gain_ci"])
    figures = f"{answer} (measured {signed(row['measured_gain'])} points, p {p})"
    return f"{figures}. {why}" if why else figures


def _cost(recommendation: Mapping[str, Any]) -> str:
    calls, seconds, dollars = (
        recommendation[key] for key in ("calls_per_question", "seconds_per_question", "price_per_1000")
    )
    number = f"{calls:.1f}".removesuffix(".0")
    each = f"{number} {'call' if number == '1' else 'calls'}"
    each += "" if seconds is None else f" and {duration(seconds)}"
    return f"{each} a question" + ("" if dollars is None else f", {price(dollars)} for 1,000 questions")


def _shortened(warnings: Sequence[str]) -> list[str]:
    more = len(warnings) - _WARNINGS
    rest = [f"The report has {counted(more, 'more warning')}."] if more > 0 else []
    return [*warnings[:_WARNINGS], *rest]


def _is_same(row: Mapping[str, Any], recommendation: Mapping[str, Any]) -> bool:
    return _strategy(row) == _strategy(recommendation)


def _strategy(row: Mapping[str, Any]) -> Strategy:
    return StrategyKey.model_validate(dict(row), context={"clean": True}).key


def _plain(text: str) -> Text:
    # Models and data are untrusted: their text must not control the terminal, nor count as markup of rich.
    return Text(visible(text))


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _interval(interval: list[float] | None) -> str:
    # A dash and not a zero: a failed candidate has no accuracy.
    return "–" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
