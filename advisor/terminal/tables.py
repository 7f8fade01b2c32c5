"""Text on the terminal: the tables of a run on standard error, its conclusion on standard output, and a trace."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from advisor.records import join, signed
from advisor.runs.schema.evaluation import EvaluatedMethod, EvaluatedModel, Evaluation
from advisor.runs.schema.figures import Accuracy, JudgeSection
from advisor.runs.schema.result import (
    MEASURES,
    CandidateFigures,
    EnsembleResult,
    Predictions,
    RecommendedStrategy,
    Result,
    StrategyFigures,
)
from advisor.runs.sentences import ceiling_in_words, on_split, on_strategy, source_of_gain
from ensemble.common.text import (
    chance,
    counted,
    duration,
    interval_name,
    of_thousand,
    p_value,
    price,
    shortened,
    shown,
    visible,
    why_not_shown,
)
from ensemble.servers.address import read_address

if TYPE_CHECKING:
    from ensemble.step.trace import Step

# Only some tasks have these: a mean over groups needs groups.
_DETAILS = {
    "mean_length": ("length", ".0f"),
    "answered": ("answered", ".1f"),
    "mean_tokens": ("tokens", ".0f"),
    "accuracy_macro": ("macro", ".1f"),
    "corpus_score": ("corpus", ".1f"),
    "truncated": ("cut off", "d"),
}
_MARKS = {"primary": "bold green", "selected": "green", "rejected": "yellow", "failed": "red"}
_REASONS = 5  # of rejected candidates, and of failed ones; the report has all
_WARNINGS = 4
_NARROWEST = 16  # characters that a name keeps where the other columns need the room
_CANDIDATES = 5  # of a step in a trace: a union has up to 30, and those below are near 0


class Names:
    """A cell with names, each of which is shortened in the middle where the column has no room for it.

    Args:
        title: The first line; empty for none.
        members: Names for the lines below it.
        mark: What stands behind the title.
        style: The style of the title.
    """

    def __init__(self, title: str, members: Sequence[str] = (), mark: str = "", style: str = "") -> None:
        self._title, self._members = visible(title), [visible(member) for member in members]
        self._mark, self._style = mark, style
        # A comma follows a member, and it is indented below a title.
        self._indent = 2 if title else 0

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(len(self._title) + len(self._mark), *(len(name) + 1 + self._indent for name in self._members), 0)
        return Measurement(min(longest, _NARROWEST), min(longest, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if self._title:
            yield Text(shortened(self._title, width - len(self._mark)), self._style) + self._mark
        if self._members:
            names = [shortened(name, width - 1 - self._indent) for name in self._members]
            yield Padding(Text(", ".join(names)), (0, 0, 0, self._indent))


def print_tables(result: Result) -> None:
    """Print the leaderboard with the reasons, the ensemble beside its members, and the strategies on standard error."""
    console = Console(stderr=True, highlight=False)
    console.print(leaderboard(result, console.width))
    if result.provenance.device:
        console.print(_plain(f"The models ran on {result.provenance.device} in {result.provenance.dtype}."))
    # Models of logs cannot decode together, so what the rules say of that is no reason.
    ruled = [each for each in result.candidates if result.can_decode or each.status == "failed"]
    explained, others = _with_reasons(ruled)
    for candidate in explained:
        console.print(Text.assemble((visible(candidate.model), "bold"), f": {visible(candidate.reason or '')}"))
    if others:
        console.print(f"The report has the reasons of {counted(others, 'more candidate')}.")
    if groups := next((candidate.groups for candidate in result.candidates if candidate.groups), None):
        console.print(
            f"Points are the mean over all questions (micro); macro is the mean over {len(groups)} groups of "
            "questions. result.json has the points of each group."
        )
    if close := [candidate.model for candidate in ruled if candidate.close_call]:
        console.print(_plain(f"Other questions could change what the rules decide on {join(close)}."))
    by_tokens = any(pair.length_unit == "tokens" for pair in result.pairs)
    if by_tokens and result.rules.think is None and any(each.reason_code == "length" for each in ruled):
        console.print("--think apart lets each model think alone: then only the lengths of the answers are compared.")
    # A table with the set of the rules alone would say nothing new.
    prediction = result.prediction
    if prediction and (prediction.set_by != "rules" or not prediction.sets[0].rules):
        console.print()
        console.print(predicted(prediction, result.advice.confidence))
    if result.ensemble:
        console.print()
        console.print(held_out(result.ensemble))
    if result.strategies:
        console.print()
        console.print(strategies(result))
    _print_judge(result.judge, console)


def print_methods(evaluation: Evaluation) -> None:
    """Print methods side by side, on standard output."""
    console = Console(highlight=False)
    console.print(methods_table(evaluation))
    apart = evaluation.think and any(each.level == "token" and not each.left_out for each in evaluation.methods)
    drawn = "take the tokens of the set" if apart else "the set has members"
    console.print(
        "p: of no gain over the best single model, corrected for the number of methods (Holm). joint: steps in which "
        "several members decided. entries: probabilities that a step looks at. self-consistency: the majority of the "
        f"best single model over as many drawn responses as {drawn}."
    )
    for entry in evaluation.methods:
        if entry.left_out:
            console.print(_plain(f"{entry.method} was left out: {entry.left_out}"), soft_wrap=True)
        if entry.note:
            console.print(_plain(f"{entry.method}: {entry.note}"), soft_wrap=True)
    _print_judge(evaluation.judge, console)


def print_conclusion(result: Result, report: Path) -> None:
    """Print what to run, how sure it is, what it costs, the warnings and the verdict, on standard output."""
    console = Console(highlight=False)
    advice = result.advice
    lines = _some([f"Warning: {warning}" for warning in advice.warnings])
    if result.can_decode or result.recommended is None:
        lines = [*lines, advice.text]
    if recommendation := advice.recommendation:
        recommended = [f"Recommended: {recommendation.text}", *_of_thousand(result, recommendation), *_source(result)]
        recommended += [possible] if (possible := ceiling_in_words(result)) else []
        shown_by = f"Shown by the test: {_shown(result, recommendation)}"
        lines = [*recommended, shown_by, f"Cost: {_cost(recommendation)}", *lines]
    else:
        lines = ["Recommended: nothing yet, because no strategy was compared on held-out questions.", *lines]
    for line in lines:
        # A file or a program gets each as one line.
        console.print(_plain(line), soft_wrap=not console.is_terminal)
    link = Style(link=report.absolute().as_uri())
    console.print(Text.assemble("Report: ", (visible(str(report)), link)), soft_wrap=True)
    # Where the models of logs are is not known here.
    if recommendation and result.can_decode:
        run = visible(shlex.quote(str(report.parent)))
        group = " --group NAME" if recommendation.key.groups else ""
        consent = _consent(result, recommendation)
        console.print(
            _plain(f"Use it: advisor run {run} QUESTION{group}{consent}, or advisor serve {run}{consent}"),
            soft_wrap=True,
        )


def _consent(result: Result, recommendation: RecommendedStrategy) -> str:
    """The options that let a command contact the servers of a strategy: those of the pool file that was just used."""
    sources = [result.provenance.models.get(name) for name in recommendation.members]
    remote = [each.remote for each in sources if each is not None and each.remote is not None]
    found = [read_address(each.address, "the pool").origin for each in remote]
    return "".join(f" --allow-server {shlex.quote(server)}" for server in dict.fromkeys(found))


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


def leaderboard(result: Result, width: int = 1000) -> Table:
    """The candidates, best first, with the decisions of the rules.

    Args:
        result: The result.
        width: Of the terminal, in characters. Columns are left out where the names would not fit.
    """
    task, candidates = result.task, result.candidates
    questions = f", {counted(task.n, task.split + ' question')}" if task.n else ""
    table = _table(f"{task.name}{questions}")
    known = [key for key in _DETAILS if any(getattr(candidate, key) for candidate in candidates)]
    # The names, points, interval and status take this much, with the spaces between them; a detail takes 8.
    room = width - max(len(visible(candidate.model)) for candidate in candidates) - 36
    longest = max(map(len, result.roles.values()), default=0)
    # A name is worth more than a role.
    roles = result.roles if room > longest else {}
    room -= longest + 1 if roles else 0
    details = known[: max(room // 8, 0)]
    for detail in details:
        table.add_column(_DETAILS[detail][0], justify="right", no_wrap=True)
    if roles:
        table.add_column("role", no_wrap=True)
    if result.can_decode:
        table.add_column("decoding" if roles else "", no_wrap=True)
    for candidate in candidates:
        table.add_row(
            *_points(candidate.model, candidate),
            *(_number(getattr(candidate, detail), _DETAILS[detail][1]) for detail in details),
            *([roles.get(candidate.model, "")] if roles else []),
            *([f"[{_MARKS[candidate.status]}]{candidate.status}"] if result.can_decode else []),
        )
    return table


def strategies(result: Result) -> Table:
    """All strategies on the held-out questions, the best first; the recommended one is marked."""
    rows, recommendation = result.strategies, result.advice.recommendation
    title = f"Strategies, {counted(rows[0].n, 'held-out question')}, compared with {rows[0].best_single_model} alone"
    table = _table(title, "strategy", interval=False)
    table.caption_justify = "left"
    is_priced = any(row.price_per_1000 is not None for row in rows)
    for heading in ("expected", "measured", "shown", "calls", *(["$ of 1,000"] if is_priced else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    titles = Counter(row.title for row in rows)
    for row in rows:
        is_recommended = recommendation is not None and row.key == recommendation.key
        if is_recommended:
            table.caption = "* recommended; gains in points"
            if row.questions is not None and row.questions != row.n:
                how = "cross-fitted over all" if row.cross_fitted else "estimated from all"
                table.caption += (
                    f", {how} {row.questions:,} dev and held-out questions, so they are not just the differences of "
                    "the points"
                )
        table.add_row(
            Names(
                row.title,
                row.members if titles[row.title] > 1 else (),
                mark=" *" if is_recommended else "",
                style="bold green" if is_recommended else "",
            ),
            _number(row.accuracy, ".1f"),
            _gain(row.expected_gain),
            _gain(row.measured_gain),
            "–" if row.is_single or row.shown is None else shown(row.shown),
            _number(row.calls_per_question, ".1f"),
            *([price(row.price_per_1000)] if is_priced else []),
        )
    return table


def predicted(prediction: Predictions, confidence: float) -> Table:
    """The sets that were decoded, that of the rules, and the most promising one, with their predicted gains.

    `confidence` is that of the run.
    """
    table = Table(title="Predicted gains, from the dev questions alone", title_justify="left", box=box.SIMPLE)
    table.add_column("set")
    for column in ("predicted", interval_name(confidence), "measured"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for n, each in enumerate(prediction.sets):
        if n and not (each.rules or each.decoded):
            continue
        table.add_row(
            Names("", each.models),
            _gain(each.predicted_gain),
            _interval(each.predicted_gain_ci),
            _gain(each.measured_gain),
            # The first row may have a candidate that the leaderboard calls rejected.
            ("chosen" if each.rules else "not chosen") + " by the rules",
        )
    return table


def held_out(ensemble: EnsembleResult) -> Table:
    """The ensemble on the held-out questions, next to its members."""
    table = _table(counted(ensemble.n, "held-out question"))
    for member in ensemble.members:
        table.add_row(*_points(member.model, member))
    table.add_row(*_points(ensemble.method, ensemble, style="bold"))
    return table


def methods_table(evaluation: Evaluation) -> Table:
    """Every member, every method, and self-consistency as the control, on the same questions."""
    questions = counted(evaluation.n, f"{evaluation.split} question")
    title = f"{evaluation.task}, {questions}, compared with {evaluation.best_single_model} alone"
    table = Table(title=_plain(title), title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("")
    for heading in ("points", "95%", "gain", "p", "ms/token", "joint", "entries"):
        table.add_column(heading, justify="right", no_wrap=True)
    for member in evaluation.members:
        table.add_row(*_scores(member), "", "", _number(member.ms_per_token, ".2f"))
    table.add_section()
    for entry in evaluation.methods:
        share, handled = entry.share_ensembled, entry.handled_per_step
        table.add_row(
            *_scores(entry),
            _gain(entry.difference),
            chance(entry.p),
            _number(entry.ms_per_token, ".2f"),
            "" if share is None else f"{100 * share:.0f}%",
            f"{handled:.0f}" if handled else "",
        )
    return table


def _scores(entry: EvaluatedModel | EvaluatedMethod) -> tuple[Names, str, str]:
    ends = entry.accuracy_ci
    interval = "–" if ends is None else f"{ends[0]:.0f} to {ends[1]:.0f}"
    return Names(entry.name), _number(entry.accuracy, ".1f"), interval


def _points(name: str, figures: Accuracy, style: str = "") -> tuple[Names, str, str]:
    return Names(name, style=style), _number(figures.accuracy, ".1f"), _interval(figures.accuracy_ci)


def _table(title: str, first: str = "model", *, interval: bool = True) -> Table:
    table = Table(title=_plain(title), title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(first)
    table.add_column("points", justify="right", no_wrap=True)
    if interval:
        table.add_column("95% interval", justify="right", no_wrap=True)
    return table


def _with_reasons(candidates: Sequence[CandidateFigures]) -> tuple[list[CandidateFigures], int]:
    """The candidates whose reasons are printed, and the number of the others."""
    left = dict.fromkeys(("rejected", "failed"), _REASONS)
    explained = []
    for candidate in candidates:
        status = candidate.status
        if left.get(status, 1) > 0:
            explained.append(candidate)
        if status in left:
            left[status] -= 1
    return explained, len(candidates) - len(explained)


def _of_thousand(result: Result, recommendation: RecommendedStrategy) -> list[str]:
    """The expected gain as right answers of 1,000, as a line; none if a question is not right or wrong."""
    gain, ends = recommendation.expected_gain, recommendation.expected_gain_ci
    if recommendation.is_single or result.is_graded or gain is None or ends is None:
        return []
    return [f"That is: {of_thousand(gain, ends)}"]


def _source(result: Result) -> list[str]:
    """Which groups of questions the gain comes from, as a line; none without groups."""
    row = result.recommended
    source = "" if row is None or row.is_single else source_of_gain(row.groups or ())
    return [source] if source else []


def _shown(result: Result, recommendation: RecommendedStrategy) -> str:
    if recommendation.is_single:
        if len(result.strategies) == 1:
            return "nothing was tested, because this is the only strategy"
        return "the test compares the other strategies with this model"
    tests = sum(not row.is_single for row in result.strategies)
    answer = shown(recommendation.shown)
    row: StrategyFigures | None = next((row for row in result.strategies if row.key == recommendation.key), None)
    if row is None or row.p_adjusted is None:
        return answer
    uncorrected, corrected = p_value(row.p_no_gain), p_value(row.p_adjusted)
    p = uncorrected if uncorrected == corrected else f"{uncorrected}; p {corrected}"
    p += " after correction for several strategies" if tests > 1 else ""
    why = why_not_shown(recommendation.shown, recommendation.expected_gain_ci, row.measured_gain_ci)
    figures = f"{answer} (measured {_gain(row.measured_gain)} points, p {p})"
    return f"{figures}. {why}" if why else figures


def _cost(recommendation: RecommendedStrategy) -> str:
    number = _number(recommendation.calls_per_question, ".1f").removesuffix(".0")
    cost = f"{number} {'call' if number == '1' else 'calls'}"
    if recommendation.seconds_per_question is not None:
        cost += f" and {duration(recommendation.seconds_per_question)}"
    dollars = recommendation.price_per_1000
    return f"{cost} a question" + ("" if dollars is None else f", {price(dollars)} for 1,000 questions")


def _some(warnings: Sequence[str]) -> list[str]:
    """The first warnings, and how many more there are."""
    more = len(warnings) - _WARNINGS
    rest = [f"The report has {counted(more, 'more warning')}."] if more > 0 else []
    return [*warnings[:_WARNINGS], *rest]


def _plain(text: str) -> Text:
    # Models and data are untrusted: their text must not control the terminal, nor count as markup of rich.
    return Text(visible(text))


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _gain(points: float | None) -> str:
    return "–" if points is None else signed(points)


def _interval(interval: tuple[float, float] | None) -> str:
    # A dash and not a zero: a failed candidate has no accuracy.
    return "–" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
