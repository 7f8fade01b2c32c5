"""A table that is written once and drawn four times: on a page, on the terminal, as Markdown, and as LaTeX.

``table`` in ``templates/parts.html.j2`` draws it on a page, and :mod:`reports.terminal` on the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ensemble.common import text
from ensemble.saved.model_card import escaped

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
    """A cell. Its texts may be a stranger's; whatever draws it escapes them.

    Attributes:
        text: What it says.
        value: What the page sorts by; None for the text.
        detail: The interval of a figure, or the members behind a name.
        tag: A word that marks a name.
        notes: Sentences below a name on the page, and below the table on the terminal.
        style: Its CSS classes, in place of those of its column; ``loss`` is that of its text.
        glyph: The mark before the text on the page.
        bar: The places of the parts of a bar, in percent of its width.
        link: Where a name leads.
    """

    text: str
    value: float | str | None = None
    detail: str = ""
    tag: str = ""
    notes: tuple[str, ...] = ()
    style: str = ""
    glyph: str = ""
    bar: Mapping[str, float] | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        title: Its head.
        cell: Makes its cell of a row's object.
        kind: Numbers stand on the right.
        details: The head of a second column with its cells' details, where the details do not stand below the texts.
        label: The head in full, for a page without a line of heads.
        descending: Whether a click on the head brings the largest first.
        where: ``page`` for a column that only the page has; ``wide`` for one that a narrow terminal leaves out.
        style: The CSS class of its cells and of its head.
        help: What is shown on hover.
    """

    title: str
    cell: Callable[[Any], Cell]
    kind: Literal["name", "text", "number"] = "number"
    details: str = ""
    label: str = ""
    descending: bool = False
    where: Literal["", "wide", "page"] = ""
    style: str = ""
    help: str | None = None

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
    """A table with its rows from top to bottom.

    Attributes:
        title: What it shows.
        columns: The columns that have a value in some row.
        rows: The cells of each row.
        styles: The CSS class of each row; empty for none.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    styles: tuple[str, ...]

    def has(self, title: str) -> bool:
        """Whether it has a column with this head."""
        return any(column.title == title for column in self.columns)


def make_table(
    title: str, rows: Iterable[Any], columns: Iterable[Column], style: Callable[[Any], str] = lambda _: ""
) -> Table:
    """Make a table of some objects, without the columns that are unknown for all of them.

    Args:
        title: What it shows.
        rows: One object for each row.
        columns: What is shown of an object.
        style: The CSS class of an object's row.
    """
    rows = list(rows)
    filled = [(column, [column.cell(row) for row in rows]) for column in columns]
    unknown = ("", text.UNKNOWN)
    filled = [each for each in filled if not rows or any(cell.text not in unknown or cell.notes for cell in each[1])]
    return Table(
        title,
        tuple(column for column, _ in filled),
        tuple(zip(*(cells for _, cells in filled), strict=True)),
        tuple(map(style, rows)),
    )


def figures(
    key: str,
    title: str,
    form: Callable[[Any], str] = text.points,
    *,
    interval: str = "",
    label: str = "",
    where: Literal["", "wide"] = "",
    style: str = "",
) -> Column:
    """A column of figures.

    Args:
        key: The field of a row's object; one that lacks it has no figure.
        title: The head.
        form: Writes a figure.
        interval: What its interval is called; the field of the interval has ``_ci`` at its end. Empty for none.
        label: The head in full.
        where: See :class:`Column`.
        style: The CSS class.
    """
    is_difference = form is text.difference
    write = text.difference_interval if is_difference else text.interval

    def cell(row: Any) -> Cell:
        value, ends = field(row, key), field(row, f"{key}_ci") if interval else None
        loss = "loss" if is_difference and text.is_loss(value) else ""
        return Cell(form(value), value, write(ends) if ends and any(ends) else "", style=loss)

    descending = is_difference or form in (text.points, text.amount)
    return Column(title, cell, details=interval, label=label, descending=descending, where=where, style=style)


def words(title: str, word: Callable[[Any], str]) -> Column:
    """A column of words."""
    return Column(title, lambda row: Cell(word(row)), "text")


def field(row: Any, key: str) -> Any:
    """A field of a row's object, or of a row that is a mapping; None if it has none."""
    return row.get(key) if isinstance(row, Mapping) else getattr(row, key, None)


def as_text(table: Table) -> Iterator[tuple[str, Column, list[Cell]]]:
    """The heads, columns and cells of a table where details are columns, without those of the page."""
    for number, column in enumerate(table.columns):
        if column.where != "page":
            cells = [row[number] for row in table.rows]
            yield column.title, column, cells
            if column.details and any(each.detail for each in cells):
                yield column.details, column, [Cell(each.detail or text.UNKNOWN) for each in cells]


def as_markdown(table: Table) -> str:
    """A table as Markdown, with a note on the rows that a pull request has no room for."""
    heads, columns = _texts(table)
    rows = zip(*columns, strict=True)
    lines = [heads, ["---"] * len(heads), *(map(escaped, row) for row, _ in zip(rows, range(MOST_ROWS), strict=False))]
    more = len(table.rows) - MOST_ROWS
    rest = f"\n\nThe report has {text.counted(more, 'more row')}." if more > 0 else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + rest


def as_latex(table: Table) -> str:
    """A table as LaTeX, for the package booktabs."""
    heads, columns = _texts(table)

    def line(cells: Sequence[str]) -> str:
        return f"{' & '.join(cell.translate(_LATEX) for cell in cells)} \\\\"

    sides = "".join("r" if column.kind == "number" else "l" for _, column, _ in as_text(table))
    begin = [f"% {table.title}", f"\\begin{{tabular}}{{{sides}}}", "\\toprule", line(heads), "\\midrule"]
    return "\n".join([*begin, *map(line, zip(*columns, strict=True)), "\\bottomrule", "\\end{tabular}", ""])


def _texts(table: Table) -> tuple[list[str], list[list[str]]]:
    """The heads, and the texts of each column."""
    columns = list(as_text(table))
    return [head for head, *_ in columns], [[cell.text for cell in cells] for *_, cells in columns]
