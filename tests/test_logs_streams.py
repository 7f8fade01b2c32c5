"""Files of logs are read piece by piece, with limits: they may be damaged, compressed, huge or hostile."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from pools import Place

from advisor.tasks.tables import streams
from ensemble.errors import InputError

pytest_plugins = ["pools"]

LINES = b'{"a": 1}\n{"a": 2}\n'


def lines(path: Path) -> tuple[list[tuple[dict[str, object], str]], list[str]]:
    notes: list[str] = []
    return list(streams.json_lines(path, notes)), notes


def write(folder: Path, content: bytes, name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_empty_lines_line_ends_of_windows_and_a_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path, b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": 2}')
    assert lines(path) == ([({"a": 1}, f"{path}:1"), ({"a": 2}, f"{path}:4")], [])


@pytest.mark.parametrize("line", [b"[1]", b"5", b"null", b"{", b'"\xff"', b'{"a": "\xff"}', b"[" * 200_000, b"\x00"])
def test_lines_that_are_no_objects_are_counted_once_for_the_file(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path, LINES + line + b"\n" + line + b"\n")
    found, notes = lines(path)
    assert len(found) == 2
    assert notes == [f"{path}: 2 lines are left out, because it is not a JSON object; the first is {path}:3"]


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_compressed_files_are_known_by_their_content(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path, compress(LINES), "log.data")
    assert [value for value, _ in lines(path)[0]] == [{"a": 1}, {"a": 2}]
    assert streams.head_of(path) == LINES


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:20] + bytes(9) + data[29:]])
def test_damaged_compressed_files_get_one_line(
    tmp_path: Path, compress: Callable[[bytes], bytes], damage: Callable[[bytes], bytes]
) -> None:
    path = write(tmp_path, damage(compress(os.urandom(3000).hex().encode())))
    with pytest.raises(InputError, match=r"log\.jsonl: (the compressed data is damaged|cannot be read)") as error:
        lines(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no zip file"])
def test_what_is_no_zip_file_gets_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match="cannot be read as a zip file"):
        streams.zip_members(write(tmp_path, content))


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: it is not a regular file"):
        lines(tmp_path / "pipe")


@pytest.mark.parametrize("name", [".", "missing", "log.jsonl/x"])
def test_folders_and_missing_files_get_one_line(tmp_path: Path, name: str) -> None:
    write(tmp_path, LINES)
    with pytest.raises(InputError, match=r"not a regular file|cannot be read"):
        lines(tmp_path / name)
    assert streams.head_of(tmp_path / name) == b""


def test_the_size_of_a_file_is_limited_by_what_it_expands_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGEST_FILE", 2**20)
    path = write(tmp_path, gzip.compress(b'{"a": 1}\n' * 2**18))
    assert path.stat().st_size < 2**16
    with pytest.raises(InputError, match="it expands to more than"):
        lines(path)


def test_a_bomb_is_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGEST_ITEM", 2**21)
    # Many short lines are fine; they are larger than the limit together.
    short = b'{"a": "' + b"x" * 2**12 + b'"}\n'
    assert len(lines(write(tmp_path, short * 2**10))[0]) == 2**10
    path = write(tmp_path, gzip.compress(short * 2**10 + b'{"a": "' + bytes(2**25)))
    assert path.stat().st_size < 2**16
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="one element is larger than 2 MB"):
            lines(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_elements_of_a_large_list_are_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGEST_ITEM", 2**17)
    # The file is larger than one element may be, and it is cut off.
    path = write(tmp_path, b"[" + b'{"a": 1.5}, ' * 50_000)
    items = streams.json_items(path)
    assert next(items)[0] == {"a": 1.5}
    with pytest.raises(InputError, match=r"log\.jsonl: not JSON after element 50000"):
        list(items)


def test_the_size_of_an_element_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGEST_ITEM", 2**17)
    path = write(tmp_path, json.dumps([{"a": 1}] * 20_000 + ["x" * 2**19]).encode())
    with pytest.raises(InputError, match="one element is larger than"):
        list(streams.json_items(path))


@pytest.mark.parametrize("content", [b"", b"[1, 2", b"[1, }", b"[1] 2", b'["\xff"]', b"[" * 3_000])
def test_what_is_no_json_gets_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match=r"log\.jsonl: ") as error:
        list(streams.json_items(write(tmp_path, content)))
    assert "\n" not in str(error.value)


LONG = b'{"eval": {"task": "a"}, "id": ' + b"9" * 5_000


@pytest.mark.parametrize("content", [LONG, LONG + b"}", b"[" + LONG + b"}]", LONG + b"}\n" * 2])
def test_a_long_integer_gets_one_line(place: Place, content: bytes) -> None:
    (place.folder / "i.json").write_bytes(content)
    place.refused("compare", "--logs", "i.json")


def test_the_keys_of_a_head_that_is_cut_off_are_found() -> None:
    assert streams.outline(LONG) == {"eval", "eval.task", "id"}
    assert streams.outline(b'[{"a": {"b": {"c": 1}}, "d": [{"e": 2}]}, {"f": "un') == {
        *("item.a", "item.a.b", "item.d", "item.f")
    }
    assert streams.outline(b'{"a": 1}\n{"b": "\xff"}') == {"a"}
    assert streams.outline(b"no JSON") == set()
