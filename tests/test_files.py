"""Hashes of files that the user's cache folder keeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ensemble.common.files import remembered_sha256, sha256


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "weights").write_bytes(b"abc")
    return tmp_path / "weights"


def notes(path: Path) -> list[Path]:
    return list(path.parent.glob("cache/unite-advisor/hashes/*"))


def test_a_hash_is_that_of_the_content(path: Path) -> None:
    assert remembered_sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_hash_is_remembered_until_the_file_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = remembered_sha256(path)
    with monkeypatch.context() as patch:
        patch.setattr("ensemble.common.files.sha256", lambda _: "f" * 64)
        assert remembered_sha256(path) == first
    status = path.stat()
    path.unlink()
    path.write_bytes(b"abd")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert remembered_sha256(path) == sha256(path) != first


@pytest.mark.parametrize("content", ["", "[]", '[[1, 2, 3, 4], "abc"]', '{"a": 1}', "7"])
def test_a_note_of_another_form_is_written_again(path: Path, content: str) -> None:
    first = remembered_sha256(path)
    (note,) = notes(path)
    whole = note.read_text(encoding="utf-8")
    note.write_text(content, encoding="utf-8")
    assert remembered_sha256(path) == first
    assert note.read_text(encoding="utf-8") == whole


def test_a_hash_that_is_not_to_be_kept_is_not_written(path: Path) -> None:
    remembered_sha256(path, keep=False)
    assert notes(path) == []


def test_a_file_name_that_is_no_text_has_a_hash(path: Path) -> None:
    odd = path.rename(path.parent / os.fsdecode(b"\xff"))
    assert remembered_sha256(odd) == remembered_sha256(odd)
