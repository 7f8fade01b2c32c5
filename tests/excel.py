"""Writes small Excel files, as spreadsheet programs do."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_STYLES = (
    f'<styleSheet xmlns="{_MAIN}"><fonts><font/></fonts><fills><fill/></fills><borders><border/></borders>'
    '<cellXfs><xf numFmtId="0"/><xf numFmtId="14" applyNumberFormat="1"/></cellXfs></styleSheet>'
)


def write_book(path: Path, sheets: Mapping[str, Sequence[Sequence[Any]]]) -> Path:
    """Write an Excel file.

    Args:
        path: The file.
        sheets: The rows of each sheet by its name: texts, numbers, dates, None for no value, and formulas as
            ``=1+1``, which have no value.
    """
    numbers = range(1, len(sheets) + 1)
    entries = "".join(
        f'<sheet name="{name}" sheetId="{number}" r:id="rId{number}"/>'
        for number, name in zip(numbers, sheets, strict=True)
    )
    links = "".join(
        f'<Relationship Id="rId{number}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{number}.xml"/>'
        for number in numbers
    )
    styles = f'<Relationship Id="rId0" Type="{_OFFICE}/styles" Target="styles.xml"/>'
    root = f'<Relationship Id="rId1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_rels/.rels", f'<Relationships xmlns="{_PACKAGE}/relationships">{root}</Relationships>')
        archive.writestr(
            "xl/workbook.xml", f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{entries}</sheets></workbook>'
        )
        archive.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{_PACKAGE}/relationships">{links}{styles}</Relationships>',
        )
        archive.writestr("xl/styles.xml", _STYLES)
        for number, rows in zip(numbers, sheets.values(), strict=True):
            archive.writestr(f"xl/worksheets/sheet{number}.xml", _sheet(rows))
    return path


def replace_in(path: Path, member: str, old: bytes, new: bytes) -> None:
    """Replace bytes in a member of a zip file."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert old in contents[member], contents[member]
    contents[member] = contents[member].replace(old, new)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    path.write_bytes(buffer.getvalue())


def _sheet(rows: Sequence[Sequence[Any]]) -> str:
    width = max((len(row) for row in rows), default=1)
    lines = "".join(
        f'<row r="{number}">'
        + "".join(_cell(f"{chr(64 + column)}{number}", value) for column, value in enumerate(row, start=1))
        + "</row>"
        for number, row in enumerate(rows, start=1)
    )
    size = f'<dimension ref="A1:{chr(64 + width)}{len(rows)}"/>'
    return f'<worksheet xmlns="{_MAIN}">{size}<sheetData>{lines}</sheetData></worksheet>'


def _cell(place: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{value:d}</v></c>'
    if isinstance(value, date):
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        return f'<c r="{place}" s="1"><v>{(moment - datetime(1899, 12, 30)).total_seconds() / 86400}</v></c>'
    if isinstance(value, (int, float)):
        return f'<c r="{place}"><v>{value}</v></c>'
    if value.startswith("="):
        return f'<c r="{place}"><f>{escape(value[1:])}</f><v></v></c>'
    return f'<c r="{place}" t="inlineStr"><is><t xml:space="preserve">{escape(value)}</t></is></c>'
