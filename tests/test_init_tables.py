"""Tables as people export them: `advisor init` guesses the right task from each, or asks one question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pools import Place

from advisor.tasks import load_task
from tests.excel import replace_in, write_book

pytest_plugins = ["pools"]

TABLES = yaml.safe_load((Path(__file__).parent / "data" / "tables.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table["label"])
def test_a_table_becomes_the_right_task_or_a_question(place: Place, table: dict[str, Any]) -> None:
    path = place.folder / table["file"]
    if isinstance(table["content"], dict):
        write_book(path, table["content"])
        merged = "".join(f'<mergeCell ref="{cells}"/>' for cells in table.get("merged", ()))
        sheet = f"</sheetData><mergeCells>{merged}</mergeCells>" if merged else "</sheetData>"
        replace_in(path, "xl/worksheets/sheet1.xml", b"</sheetData>", sheet.encode())
    else:
        path.write_bytes(table["content"].encode(table.get("encoding", "utf-8")))
    arguments = ("init", path.name, "--yes", "--name", "task", *table.get("options", ()))
    if "asks" in table:
        assert table["asks"] in place.refused(*arguments)
        return
    ran = place.advisor(*arguments)
    assert ran.status == 0, ran.err
    keys = yaml.safe_load((place.folder / "task.yaml").read_text(encoding="utf-8"))
    assert {key: keys.get(key) for key in table.get("keys", {})} == table.get("keys", {})
    said = " ".join(ran.out.replace("\n# ", " ").split())
    assert [words for words in table.get("says", ()) if words not in said] == [], ran.out
    assert "Warning" not in ran.out
    tasks = [load_task(place.folder / "task.yaml", split=split) for split in ("dev", "held_out")]
    assert all(task.score(example, example.accepted[0]).value > 0.999 for task in tasks for example in task.examples)
