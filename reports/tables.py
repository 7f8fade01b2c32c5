"""The tables that several forms of the report have, each made of its section of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from advisor.advice.compared_models import of_clusters
from advisor.run.evaluation import EvaluatedMethod, EvaluatedModel, Evaluation
from advisor.run.result import CandidateFigures, EnsembleResult, Result, StrategyFigures
from ensemble.common import text
from ensemble.saved.model_card import escaped

MOST_STRATEGIES = 100  # a run has about ten; a page of thousands would be of no use
STATUS_WORDS = {"primary": "Primary", "selected": "Chosen", "rejected": "Not chosen", "failed": "Failed"}
INTERVAL = "95% interval"
"""What the interval of an accuracy is called."""
_MOST_NAMES = 12
_JOINS = {"token": "tokens", "span": "spans", "response": "responses", "control": "control"}


def accuracy(measure: str, key: str = "accuracy") -> Column:
    """The column of what the points of a model are."""
    return figures(key, measure.capitalize(), interval=INTERVAL, style="accuracy")


def leaderboard(result: Result) -> Table:
    """The candidates on the dev questions, best first, with their roles and what the rules decided."""
    roles, numbers = result.roles, {each.name: n for n, each in enumerate(result.candidates)}
    held_out = {each.model: each.accuracy for each in result.single_models if each.n == result.held_out}
    bars = _bars(result)
    points = accuracy(result.measure)

    def score(each: CandidateFigures) -> Cell:
        return replace(points.cell(each), bar=bars.get(each.name))

    def rank(each: CandidateFigures) -> Cell:
        return Cell(str(numbers[each.name] + 1), numbers[each.name])

    def role(each: CandidateFigures) -> Cell:
        own = roles.get(each.name)
        return Cell(own or text.UNKNOWN, own or "", glyph="recommended" if own else "")

    def on_held_out(each: CandidateFigures) -> Cell:
        return Cell(text.points(held_out.get(each.name)), held_out.get(each.name))

    def status(each: CandidateFigures) -> Cell:
        return Cell(STATUS_WORDS[each.status], [*STATUS_WORDS].index(each.status), glyph=each.status)

    columns = [
        Column("No.", rank, "text", where="page", style="rank"),
        Column("Model", lambda each: Cell(each.name, notes=tuple(_notes(each, result))), "name", data=fields("model")),
        Column("Role", role, "text", where="wide", style="role", data=lambda each: {"role": roles.get(each.name)}),
        replace(points, cell=score),
        Column("Held-out", on_held_out, label="Held-out questions", descending=True, where="wide"),
        figures("accuracy_macro", "Macro", label="Mean of the groups", where="wide"),
        figures("corpus_score", "Corpus", interval=INTERVAL, where="wide"),
        figures("mean_length", "Length", text.length, label="Mean length", where="wide"),
        figures("mean_tokens", "Tokens", text.length, label="Mean tokens", where="wide"),
        replace(
            figures("answered", "Answered", lambda value: text.UNKNOWN if value is None else f"{value:.1f}%"),
            where="wide",
            help="Percent of the responses from which an answer was read",
        ),
    ]
    for key, title in (("truncated", "Cut off"), ("errors", "Errors")):
        has_some = any(getattr(each, key) for each in result.candidates)
        columns.append(figures(key, title, text.thousands, where="wide" if has_some else "data"))
    columns += [
        figures("tokens_per_second", "Tokens/s", text.amount, where="wide"),
        Column(
            "Decoding rules",
            status,
            "text",
            where="" if result.can_decode else "data",
            style="status",
            data=fields("status", "reason"),
        ),
    ]
    questions = f", {text.counted(result.task.n, result.task.split + ' question')}" if result.task.n else ""
    title = f"Leaderboard, {result.task.name}{questions}"
    return make_table(title, result.candidates, columns, lambda each: f"is-{each.status}")


def _notes(each: CandidateFigures, result: Result) -> list[str]:
    notes = []
    responses = text.counted(each.n or 0, "response")
    if each.reason and each.status == "failed":
        notes.append(each.reason)
    elif each.reason and result.can_decode:
        notes.append(text.sentence(each.reason))
    if each.empty or each.refused or each.filtered:
        notes.append(
            f"Of {responses} {each.empty or 0} are empty, {each.refused or 0} refused, and {each.filtered or 0} "
            "filtered."
        )
    if each.truncated and each.finished_accuracy is not None and each.n and each.accuracy is not None:
        finished = each.finished_accuracy
        are_wrong = each.accuracy * each.n <= finished * (each.n - each.truncated) + 0.001
        enough = "" if each.enough_tokens is None else f" About {each.enough_tokens:,} tokens would be enough for 95%."
        notes.append(
            f"{each.truncated} of {responses} cut off{', which count as wrong' if are_wrong else ''}; "
            f"{text.points(finished)} points on the others.{enough}"
        )
    if each.close_call and result.can_decode:
        notes.append(f"Close call: {text.sentence(each.close_call)}")
    return notes


def _bars(result: Result) -> dict[str, dict[str, float]]:
    """Return each candidate's accuracy, its interval and the lowest allowed accuracy, in percent of the bar's width."""
    known = [
        (each.name, each.accuracy, each.accuracy_ci or (each.accuracy,) * 2)
        for each in result.candidates
        if each.accuracy is not None
    ]
    if not known:
        return {}
    low, high = min(ends[0] for _, _, ends in known), max(ends[1] for _, _, ends in known)
    # At least one point, so that equal accuracies do not divide by zero.
    width = max(high - low, 1.0)
    primary = result.primary
    # Without a primary there is no limit to draw, and the mark falls on the left end.
    limit = primary.accuracy - result.rules.max_gap if primary and primary.accuracy is not None else low

    def percent(value: float) -> float:
        return round(100 * min(max((value - low) / width, 0.0), 1.0), 2)

    return {
        name: {"at": percent(at), "low": percent(ends[0]), "high": percent(ends[1]), "floor": percent(limit)}
        for name, at, ends in known
    }


def strategies(result: Result) -> Table:
    """What could run in production, on the held-out questions; the recommended strategy has a tag."""
    rows, recommendation = result.strategies[:MOST_STRATEGIES], result.advice.recommendation
    key = None if recommendation is None or result.advice.no_advice is not None else recommendation.key

    def name(row: StrategyFigures) -> Cell:
        return Cell(row.title, detail=_members(row), tag="recommended" if row.key == key else "")

    def points(row: StrategyFigures) -> Cell:
        return Cell(text.points(result.level(row)), result.level(row))

    interval = text.interval_name(result.advice.confidence)
    columns = [
        Column("Strategy", name, "name", details="Models", data=fields("strategy", "members")),
        Column(result.measure.capitalize(), points, label=f"Expected {result.measure}", descending=True),
        figures("accuracy", "Held-out", interval=INTERVAL, where="data"),
        figures("expected_gain", "Gain", text.difference, interval=interval, label="Expected gain"),
        figures("measured_gain", "Measured", text.difference, interval=interval, where="data"),
        figures("p_adjusted", "p", text.chance, where="data"),
        replace(
            figures("probability", "Better", text.probability, label="Probability that it is better"), descending=True
        ),
        figures("calls_per_question", "Calls", text.decimals, label="Calls a question"),
        figures("tokens_per_question", "Tokens", text.length, label="Tokens a question", where="wide"),
        figures("seconds_per_question", "Time", text.duration, label="Time of a question", where="wide"),
        figures("seconds_median", "Median", text.duration, where="data"),
        figures("seconds_p95", "95%", text.duration, where="data"),
        figures("price_per_1000", "Price of 1,000", text.price, label="Price of 1,000 questions"),
    ]
    best = next((row.best_single_model for row in rows if row.best_single_model), None)
    asked = max((row.questions or row.n for row in rows), default=0)
    title = f"Strategies, {text.counted(asked, 'question')}"
    title += f", compared with {best} alone" if best else ""
    return make_table(title, rows, columns, lambda row: "recommended" if row.key == key else "")


def _members(row: StrategyFigures) -> str:
    """The members in the order in which they are asked, with the weights of their votes."""
    if len(row.members) == 1:
        return ""  # the strategy's name has it
    names = row.members[:_MOST_NAMES]
    more = len(row.members) - len(names)
    return row.key.list_members(names) + (f" and {more:,} more" if more else "")


def held_out(ensemble: EnsembleResult, measure: str) -> Table:
    """The set that decodes together, and each member alone."""
    weights = None if ensemble.weights is None else " : ".join(f"{each:.3g}" for each in ensemble.weights)
    told = (("k =", ensemble.k), ("weights", weights), ("thinking", ensemble.think))
    options = "".join(f", {name} {value}" for name, value in told if value is not None)

    def name(row: Any) -> Cell:
        return Cell(f"{row.name} ensemble{options}" if row is ensemble else row.name)

    columns = [
        Column("Model", name, "name"),
        figures("accuracy", measure.capitalize(), interval=INTERVAL),
        figures("corpus_score", "Corpus score", interval=INTERVAL, where="wide"),
        figures("mean_length", "Mean length", text.length, where="wide"),
    ]
    title = text.counted(ensemble.n, f"{ensemble.split.replace('_', '-')} question".strip())
    return make_table(title, [ensemble, *ensemble.members], columns, lambda row: "together" if row is ensemble else "")


def methods(evaluation: Evaluation, measure: str) -> Table:
    """Every member, every method, and self-consistency as the control, on the same questions."""

    def name(row: EvaluatedModel | EvaluatedMethod) -> Cell:
        notes: list[str] = []
        if isinstance(row, EvaluatedMethod):
            notes += [text.sentence(f"left out: {row.left_out}")] if row.left_out else []
            notes += [text.sentence(row.note)] if row.note else []
        return Cell(row.name, notes=tuple(notes))

    def joins(row: EvaluatedModel | EvaluatedMethod) -> Cell:
        return Cell(_JOINS[row.level] if isinstance(row, EvaluatedMethod) else "alone")

    columns = [
        Column("Method", name, "name"),
        Column("Joins", joins, "text", where="page"),
        accuracy(measure),
        figures("corpus_score", "Corpus", interval=INTERVAL, where="wide"),
        figures("difference", "Difference", text.difference, interval=INTERVAL),
        figures("p", "p", text.chance),
        figures("ms_per_token", "ms/token", text.milliseconds),
        figures("share_ensembled", "Joint steps", text.share),
        figures("handled_per_step", "Entries", text.amount),
        figures("peak_memory", "Memory", text.memory, where="wide"),
    ]
    questions = text.counted(evaluation.n, f"{evaluation.split.replace('_', '-')} question")
    title = f"{evaluation.task}, {questions}, compared with {evaluation.best_single_model} alone"
    rows: list[EvaluatedModel | EvaluatedMethod] = [*evaluation.members, *evaluation.methods]
    return make_table(
        title, rows, columns, lambda row: "is-failed" if isinstance(row, EvaluatedMethod) and row.left_out else ""
    )


def compared_models(comparison: Mapping[str, Any]) -> Table:
    """The models of a comparison, the best first."""
    interval = text.interval_name(comparison["confidence"])
    columns = [
        Column("Model", lambda row: Cell(row["model"]), "name"),
        figures("accuracy", "Accuracy", interval=interval, style="accuracy"),
        figures("accuracy_macro", "Mean of groups"),
    ]
    title = f"{comparison['task']}, {comparison['n']:,} questions{of_clusters(comparison)}, {comparison['metric']}"
    return make_table(title, sorted(comparison["models"], key=lambda each: -float(each["accuracy"])), columns)


def has_baseline(comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all pairs that are shown are those with the baseline, which then needs no name in each row."""
    return all(pair["a"] == comparison["baseline"] for pair in pairs)


def pair_name(pair: Mapping[str, Any], *, with_baseline: bool) -> str:
    """What a row calls a pair."""
    return str(pair["b"]) if with_baseline else f"{pair['b']} – {pair['a']}"


def compared_pairs(comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> Table:
    """The differences of the pairs that are shown."""
    baseline, tested = comparison["baseline"], comparison["tested"]["pairs"]
    with_baseline = has_baseline(comparison, pairs)
    columns = [
        Column("Model", lambda row: Cell(pair_name(row, with_baseline=with_baseline)), "name"),
        words("Shown", lambda row: str(row["says"])),
        figures("difference", "Points", text.difference, interval=text.interval_name(comparison["confidence"])),
        figures("p_adjusted", "p", text.chance),
        figures("gained", "Gained", text.thousands),
        figures("lost", "Lost", text.thousands),
        figures("smallest_shown", "Shows from", where="wide"),
    ]
    title = f"Difference from {baseline}" if with_baseline else "Differences of the pairs"
    title += f"; p after Holm's correction for {tested:,} pairs" if tested > 1 else ""
    return make_table(title, pairs, columns)


def compared_groups(pair: Mapping[str, Any], confidence: float) -> Table:
    """The difference of a pair on each group of questions, on all questions, and as the mean of the groups."""
    every = {**pair, "group": "all questions", "opposite": False}
    mean = {"group": "mean of groups", "n": None, "difference": pair["macro_difference"], "opposite": False}
    columns = [
        Column("Group", lambda row: Cell(row["group"]), "name"),
        figures("n", "Questions", text.thousands),
        figures("difference", "Points", text.difference, interval=text.interval_name(confidence)),
        words("Sign", lambda row: "the other way" if row["opposite"] else ""),
    ]
    return make_table(f"{pair['b']} – {pair['a']} by group", [*pair["groups"], every, mean], columns)


MOST_ROWS = 30
"""Of a table in Markdown: a pull request has no room for more."""
_LATEX = str.maketrans(
    {
        **{each: f"\\{each}" for each in "&%$#_{}"},
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        text.MINUS: "$-$",
        text.UNKNOWN: "--",
    }
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell. Its texts may be a stranger's; whatever draws it escapes them."""

    text: str
    value: float | str | None = None  # what the page sorts by; None for the text
    detail: str = ""  # the interval of a figure, or the members behind a name
    tag: str = ""  # a word that marks a name
    notes: tuple[str, ...] = ()  # sentences below a name on the page, and below the table on the terminal
    style: str = ""  # its CSS classes, in place of those of its column; ``loss`` is that of its text
    glyph: str = ""  # the mark before the text on the page
    bar: Mapping[str, float] | None = None  # the places of the parts of a bar, in percent of its width
    link: str | None = None  # where a name leads


@dataclass(frozen=True, slots=True)
class Column:
    """A column."""

    title: str  # its head
    cell: Callable[[Any], Cell]
    kind: Literal["name", "text", "number"] = "number"  # numbers stand on the right
    details: str = ""  # the head of a second column with its cells' details; empty: they stand below the texts
    label: str = ""  # the head in full, for a page without a line of heads
    descending: bool = False  # whether a click on the head brings the largest first
    where: Literal["", "wide", "page", "data"] = (
        ""  # ``wide``: a narrow terminal leaves it out; ``data``: it is not drawn
    )
    style: str = ""  # the CSS class of its cells and of its head
    help: str | None = None  # what is shown on hover
    data: Callable[[Any], Mapping[str, Any]] = lambda _: {}  # what CSV files and data frames have of it, by key

    @property
    def classes(self) -> str | None:
        """The CSS classes of its head."""
        # Accuracies stand on the left, beside their bars.
        return self.style or ("num" if self.kind == "number" else None)

    def classes_of(self, cell: Cell) -> str | None:
        """The CSS classes of one of its cells."""
        return self.classes if cell.style in ("", "loss") else cell.style


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its rows from top to bottom; `styles` are their CSS classes, empty for none."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    styles: tuple[str, ...]
    data: tuple[Mapping[str, Any], ...]  # the rows for programs, with all columns; None for an unknown value

    def has(self, title: str) -> bool:
        """Whether it has a column with this head."""
        return any(column.title == title for column in self.columns)


def make_table(
    title: str, rows: Iterable[Any], columns: Iterable[Column], style: Callable[[Any], str] = lambda _: ""
) -> Table:
    """Make a table of some objects; columns that are unknown for all of them are in its data alone."""
    rows, columns = list(rows), list(columns)
    filled = [(column, [column.cell(row) for row in rows]) for column in columns if column.where != "data"]
    unknown = ("", text.UNKNOWN)
    filled = [each for each in filled if not rows or any(cell.text not in unknown or cell.notes for cell in each[1])]
    return Table(
        title,
        tuple(column for column, _ in filled),
        tuple(zip(*(cells for _, cells in filled), strict=True)),
        tuple(map(style, rows)),
        tuple({key: value for column in columns for key, value in column.data(row).items()} for row in rows),
    )


def figures(
    key: str,
    title: str,
    form: Callable[[Any], str] = text.points,
    *,
    interval: str = "",
    label: str = "",
    where: Literal["", "wide", "data"] = "",
    style: str = "",
) -> Column:
    """A column of figures, by the field of a row's object; the field of an interval has ``_ci`` at its end."""
    is_difference = form is text.difference
    write = text.difference_interval if is_difference else text.interval

    def cell(row: Any) -> Cell:
        value, ends = field(row, key), field(row, f"{key}_ci") if interval else None
        loss = "loss" if is_difference and text.is_loss(value) else ""
        return Cell(form(value), value, write(ends) if ends and any(ends) else "", style=loss)

    def data(row: Any) -> dict[str, Any]:
        low, high = field(row, f"{key}_ci") or (None, None)
        return {key: field(row, key), **({f"{key}_low": low, f"{key}_high": high} if interval else {})}

    return Column(
        title,
        cell,
        details=interval,
        label=label,
        descending=is_difference or form in (text.points, text.amount, text.thousands),
        where=where,
        style=style,
        data=data,
    )


def words(title: str, word: Callable[[Any], str]) -> Column:
    """A column of words."""
    return Column(title, lambda row: Cell(word(row)), "text")


def fields(*keys: str) -> Callable[[Any], dict[str, Any]]:
    """What programs get of a row's object: some of its fields, a list of names as one text."""

    def data(row: Any) -> dict[str, Any]:
        values = ((key, field(row, key)) for key in keys)
        return {key: ", ".join(value) if isinstance(value, tuple) else value for key, value in values}

    return data


def field(row: Any, key: str) -> Any:
    """A field of a row's object, or of a row that is a mapping; None if it has none."""
    return row.get(key) if isinstance(row, Mapping) else getattr(row, key, None)


class TextColumn(NamedTuple):
    """A column of text: its head, its side, when it is left out (``wide`` before ``detail``), and its cells."""

    head: str
    kind: str
    where: str
    cells: list[Cell]


def as_text(table: Table) -> Iterator[TextColumn]:
    """The columns of a table where details are columns, without those of the page."""
    for number, column in enumerate(table.columns):
        if column.where != "page":
            cells = [row[number] for row in table.rows]
            yield TextColumn(column.title, column.kind, column.where, cells)
            if column.details and any(each.detail for each in cells):
                details = [Cell(each.detail or text.UNKNOWN) for each in cells]
                yield TextColumn(column.details, column.kind, f"{column.where} detail".strip(), details)


def as_markdown(table: Table) -> str:
    """A table as Markdown, with a note on the rows that a pull request has no room for."""
    columns = [[each.head, "---", *(escaped(cell.text) for cell in each.cells[:MOST_ROWS])] for each in as_text(table)]
    more = len(table.rows) - MOST_ROWS
    rest = f"\n\nThe report has {text.counted(more, 'more row')}." if more > 0 else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns, strict=True)) + rest


def as_latex(table: Table) -> str:
    """A table as LaTeX, for the package booktabs."""
    columns = list(as_text(table))
    heads, *rows = zip(*([each.head, *(cell.text for cell in each.cells)] for each in columns), strict=True)

    def line(cells: Iterable[str]) -> str:
        return f"{' & '.join(cell.translate(_LATEX) for cell in cells)} \\\\"

    sides = "".join("r" if each.kind == "number" else "l" for each in columns)
    begin = [f"% {table.title}", f"\\begin{{tabular}}{{{sides}}}", "\\toprule", line(heads), "\\midrule"]
    return "\n".join([*begin, *map(line, rows), "\\bottomrule", "\\end{tabular}", ""])
