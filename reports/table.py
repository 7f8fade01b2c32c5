"""A table that is written once and drawn four times: on a page, on the terminal, as Markdown, and as LaTeX.

``table`` in ``templates/parts.html.j2`` draws it on a page, and :mod:`reports.terminal` on the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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
    where: Literal["", "wide", "page"] = ""  # ``wide``: a narrow terminal leaves it out
    style: str = ""  # the CSS class of its cells and of its head
    help: str | None = None  # what is shown on hover

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

    def has(self, title: str) -> bool:
        """Whether it has a column with this head."""
        return any(column.title == title for column in self.columns)


def make_table(
    title: str, rows: Iterable[Any], columns: Iterable[Column], style: Callable[[Any], str] = lambda _: ""
) -> Table:
    """Make a table of some objects, without the columns that are unknown for all of them."""
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
    """A column of figures, by the field of a row's object; the field of an interval has ``_ci`` at its end."""
    is_difference = form is text.difference
    write = text.difference_interval if is_difference else text.interval

    def cell(row: Any) -> Cell:
        value, ends = field(row, key), field(row, f"{key}_ci") if interval else None
        loss = "loss" if is_difference and text.is_loss(value) else ""
        return Cell(form(value), value, write(ends) if ends and any(ends) else "", style=loss)

    descending = is_difference or form in (text.points, text.amount, text.thousands)
    return Column(title, cell, details=interval, label=label, descending=descending, where=where, style=style)


def words(title: str, word: Callable[[Any], str]) -> Column:
    """A column of words."""
    return Column(title, lambda row: Cell(word(row)), "text")


def field(row: Any, key: str) -> Any:
    """A field of a row's object, or of a row that is a mapping; None if it has none."""
    return row.get(key) if isinstance(row, Mapping) else getattr(row, key, None)


class TextColumn(NamedTuple):
    """A column of text: its head, its side, when it is left out (``detail`` before ``wide``), and its cells."""

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
                yield TextColumn(column.details, column.kind, "detail", details)


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
