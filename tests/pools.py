"""Pools of tiny random models, task files, and the command run on them within this process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import pytest
import torch
import typer
import yaml
from safetensors.torch import load_file, save_file
from tiny import byte_tokenizer, save_member, tiny_model, unigram_tokenizer

from advisor import cli

QUESTIONS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 13)]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: three that work (alpha, beta, gamma), and one each that is of no use in its own way."""
    folder = tmp_path_factory.mktemp("models")
    made_up = {"alpha": byte_tokenizer(("What", " is")), "beta": unigram_tokenizer(byte_fallback=True)}
    for seed, name in enumerate(["alpha", "beta", "gamma"]):
        tokenizer = made_up.get(name) or byte_tokenizer((" the", "ing"))
        save_member(folder / name, tiny_model(tokenizer, seed=seed, hidden=8, positions=256), tokenizer)
    for name in ("incomplete", "pickled", "numberless"):
        tokenizer = made_up["alpha"]
        model = tiny_model(tokenizer, seed=9, hidden=8)
        if name == "numberless":
            with torch.no_grad():
                model.get_output_embeddings().weight.fill_(torch.nan)
        save_member(folder / name, model, tokenizer)
    weights = folder / "incomplete" / "model.safetensors"
    tensors = load_file(weights)
    tensors.popitem()
    save_file(tensors, weights, metadata={"format": "pt"})
    (folder / "pickled" / "model.safetensors").rename(folder / "pickled" / "pytorch_model.bin")
    (folder / "empty").mkdir()
    return folder


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The only line on standard error."""
        assert self.err.endswith("\n") and self.err.count("\n") == 1, self.err
        return self.err.rstrip("\n")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with a task and a pool, and the command run in it.

    Attributes:
        folder: The current folder while the command runs; it has nothing but what a test puts there.
        cache: The user's cache folder, which is not there before the command makes it.
        advisor: Run the command with some arguments.
    """

    folder: Path
    cache: Path
    advisor: Callable[..., Ran]

    def pool(self, *lines: str, name: str = "models.txt") -> str:
        """Write a pool file."""
        return self.write(name, "".join(f"{line}\n" for line in lines))

    def task(self, questions: list[dict[str, str]] | None = None, **keys: Any) -> str:
        """Write a task file and its data, half of the questions for each split."""
        records = QUESTIONS if questions is None else questions
        half = (len(records) + 1) // 2
        self.write("dev.jsonl", "".join(f"{json.dumps(record)}\n" for record in records[:half]))
        self.write("held_out.jsonl", "".join(f"{json.dumps(record)}\n" for record in records[half:]))
        content = {
            "name": "sums",
            "data": {"dev": "dev.jsonl", "held_out": "held_out.jsonl"},
            "prompt": "{{question}}\nAnswer:",
            "reference": "{{answer}}",
            "metric": "contains",
            "max_new_tokens": 6,
        }
        return self.write("task.yaml", yaml.safe_dump({**content, **keys}))

    def job(self, models: Path) -> None:
        """Write a task, and a pool of the three models that work."""
        self.task()
        self.pool(*(str(models / name) for name in ("alpha", "beta", "gamma")))

    def refused(self, *arguments: str | os.PathLike[str]) -> str:
        """The line that bad input is answered with, nothing having been written."""
        before = self.files()
        ran = self.advisor(*arguments)
        assert (ran.status, ran.out) == (2, "")
        assert self.files() == before
        assert not self.cache.exists()
        assert ran.line.startswith("advisor: ")
        return ran.line

    def write(self, name: str, text: str) -> str:
        """Write a file; its name."""
        (self.folder / name).write_text(text, encoding="utf-8", newline="")
        return name

    def files(self) -> set[str]:
        """All that is in the folder."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}


Prepare = Callable[[str, Place, Callable[[], None]], None]


@pytest.fixture(scope="session")
def prepare(tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    """Fill a place as a function does, which is called once for each name; later places get copies of its files."""
    kept = tmp_path_factory.mktemp("kept")

    def fill(name: str, place: Place, make: Callable[[], None]) -> None:
        if (kept / name).exists():
            shutil.copytree(kept / name, place.folder.parent, dirs_exist_ok=True)
        else:
            make()
            shutil.copytree(place.folder.parent, kept / name)

    return fill


command_line = cache(typer.main.get_command)


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], no_drawings: None
) -> Iterator[Place]:
    """An empty folder to run the command in, with a cache of its own. Its reports have no drawings."""
    folder, cache = tmp_path / "work", tmp_path / "cache"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPLCONFIGDIR", matplotlib.get_cachedir())  # it would look for fonts again in a new place
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    # To search all that pytest holds for freed models takes longer than to run these models.
    monkeypatch.setattr("advisor.models.local_model.gc", SimpleNamespace(collect=lambda: 0))
    # The parsers of all commands are the same each time.
    monkeypatch.setattr("advisor.cli.typer.main.get_command", command_line)

    def advisor(*arguments: str | os.PathLike[str]) -> Ran:
        monkeypatch.setattr("sys.argv", ["advisor", *map(str, arguments)])
        capfd.readouterr()
        status = 0
        try:
            cli.main()
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capfd.readouterr()
        return Ran(status, captured.out, captured.err)

    yield Place(folder, cache, advisor)
