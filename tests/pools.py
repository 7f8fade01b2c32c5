"""Pools of tiny random models, task files, and the command run on them within this process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import pytest
import torch
import typer
import yaml
from conftest import leave_drawings_empty
from safetensors.torch import load_file, save_file
from sharing import demo_cache
from tiny import byte_tokenizer, save_member, tiny_model, unigram_tokenizer

from advisor import cli
from advisor.models.run_config import RunConfig
from advisor.options.new_run import SelectOptions

SELECT = ("select", "--pool", "models.txt", "--task", "task.yaml")
LENIENT = ("--max-gap", "100", "--max-length-ratio", "1e9")
"""Limits within which the models of :func:`models` fit each other."""
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


@pytest.fixture(scope="session")
def long_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models whose contexts hold the prompts of a judge, and several responses."""
    folder = tmp_path_factory.mktemp("long")
    for seed, (name, words) in enumerate({"one": ("What", " is"), "two": (" the",), "three": ()}.items()):
        tokenizer = byte_tokenizer(words)
        save_member(folder / name, tiny_model(tokenizer, seed=seed, hidden=8, positions=4096), tokenizer)
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

    def job(self, models: Path, *names: str) -> None:
        """Write a task, and a pool of models that work, or of all three."""
        self.task()
        self.pool(*(str(models / name) for name in names or ("alpha", "beta", "gamma")))

    def select(self, *options: str) -> Ran:
        """Run the whole job on the pool and the task, whose models all fit, into the folder `run`."""
        ran = self.advisor(*SELECT, *LENIENT, "--out", "run", *options)
        assert ran.status == 0, ran.err
        return ran

    def plan(self, *, verify: bool = True) -> RunConfig:
        """The whole job on the pool and the task, loaded."""
        options = SelectOptions(
            pool="models.txt",
            task="task.yaml",
            max_gap=100.0,
            max_length_ratio=1e9,
            no_verify=not verify,
            cache_dir=self.cache,
        )
        return RunConfig.from_options(options, "advisor select")

    def json(self, name: str = "run/result.json") -> Any:
        """The content of a JSON file, in which NaN is an error."""
        text = (self.folder / name).read_text(encoding="utf-8")
        return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))

    def samples(self, split: str | None = None, out: str = "run") -> list[dict[str, Any]]:
        """The questions of a run folder."""
        lines = (self.folder / out / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        return [sample for sample in map(json.loads, lines) if split in (None, sample["split"])]

    def edit(self, change: Callable[[Any], object], name: str = "run/result.json") -> None:
        """Change the content of a JSON file."""
        content = self.json(name)
        change(content)
        self.write(name, json.dumps(content))

    def refused(self, *arguments: str | os.PathLike[str]) -> str:
        """The line that bad input is answered with, nothing having been written."""
        before = self.files(), self.cache.exists()
        ran = self.advisor(*arguments)
        assert (ran.status, ran.out) == (2, "")
        assert (self.files(), self.cache.exists()) == before
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


def prepare_process(patch: pytest.MonkeyPatch, folder: Path, cache: Path) -> None:
    """Make a folder the current one, with a cache of its own, for commands that run in this process."""
    patch.chdir(folder)
    patch.setenv("MPLCONFIGDIR", matplotlib.get_cachedir())  # it would look for fonts again in a new place
    patch.setenv("XDG_CACHE_HOME", str(cache))
    patch.setenv("XDG_STATE_HOME", str(folder.with_name("state")))
    # To search all that pytest holds for freed models takes longer than to run these models.
    patch.setattr("advisor.models.local_model.gc", SimpleNamespace(collect=lambda: 0))
    # The parsers of all commands are the same each time.
    patch.setattr("advisor.cli.typer.main.get_command", command_line)


def status_of(patch: pytest.MonkeyPatch, arguments: Sequence[str | os.PathLike[str]]) -> int:
    """Run the command in this process; its status."""
    patch.setattr("sys.argv", ["advisor", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="session")
def finished(models: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of three models that all fit, which no test changes: its folder, and the command's status and texts."""
    with shared_place(tmp_path_factory.mktemp("finished")) as place:
        place.job(models)
        ran = place.advisor(*SELECT, *LENIENT, "--out", "run", "--json", "--quiet")
    return SimpleNamespace(run=place.folder / "run", status=ran.status, out=ran.out, err=ran.err)


@contextmanager
def shared_place(folder: Path) -> Iterator[Place]:
    """A place in a folder, for fixtures of several tests; its reports have no drawings."""
    with pytest.MonkeyPatch.context() as patch:
        prepare_process(patch, folder, folder / "cache")
        leave_drawings_empty(patch)

        def advisor(*arguments: str | os.PathLike[str]) -> Ran:
            with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
                status = status_of(patch, arguments)
            return Ran(status, out.getvalue(), err.getvalue())

        yield Place(folder, folder / "cache", advisor)


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three of the demo's models, which no test changes; each of its strategies has a name of one word."""
    folder = tmp_path_factory.mktemp("demo")
    models = ("--pool", "demo", "--only", "terse-neox,terse-mistral,terse-olmo")
    with pytest.MonkeyPatch.context() as patch:
        prepare_process(patch, folder, demo_cache(tmp_path_factory))
        leave_drawings_empty(patch)
        limit = ("--limit", "24", "--quiet", "--out", "run")
        assert status_of(patch, ["select", *models, "--task", "word_problems", *limit]) == 0
    return folder / "run"


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], no_drawings: None
) -> Iterator[Place]:
    """An empty folder to run the command in, with a cache of its own. Its reports have no drawings."""
    folder, cache = tmp_path / "work", tmp_path / "cache"
    folder.mkdir()
    prepare_process(monkeypatch, folder, cache)

    def advisor(*arguments: str | os.PathLike[str]) -> Ran:
        capfd.readouterr()
        status = status_of(monkeypatch, arguments)
        captured = capfd.readouterr()
        return Ran(status, captured.out, captured.err)

    yield Place(folder, cache, advisor)
