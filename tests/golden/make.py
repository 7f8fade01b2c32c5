"""Records run folders, cache keys and help texts: ``python -m tests.golden.make`` writes ``tests/golden/expected``.

All of it runs in one new process, with a cache that is empty at first and that its cases share.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = Path(__file__).with_name("expected")
FILES = ("result.json", "samples.jsonl", "evaluation.json", "strategy.json", "ensemble.json")
"""The files of a folder that are recorded; of the others, that they are there."""
DEMO = ("--pool", "demo", "--task", "word_problems")


def write(out: Path, **environment: str) -> str:
    """Record everything into a folder; what failed, empty if nothing did."""
    with tempfile.TemporaryDirectory() as work:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTEST", "ADVISOR_"))}
        folders = {"XDG_CACHE_HOME": f"{work}/cache", "XDG_STATE_HOME": f"{work}/state", "HF_HOME": f"{work}/keys/hub"}
        fixed = {"HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "NO_PROXY": "127.0.0.1"}
        paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
        command = [sys.executable, "-m", "tests.golden.make", str(out), work]
        env = {**kept, **folders, **fixed, "PYTHONPATH": paths, **environment}
        return subprocess.run(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, check=False).stderr


@dataclass
class Case:
    """A case: its folder, and what it prints as JSON."""

    folder: Path
    printed: dict[str, Any] = field(default_factory=dict)

    def advisor(self, *arguments: str) -> str:
        """Run the command in this process; what it prints."""
        from advisor import cli

        sys.argv, printed = ["advisor", *arguments], io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                cli.main()
            except SystemExit as end:
                if end.code:
                    raise RuntimeError(f"{' '.join(arguments)}: status {end.code}") from None
        return printed.getvalue()

    def select(self, *arguments: str) -> None:
        """Select into the folder ``run``."""
        self.advisor("select", *arguments, "--out", "run", "--quiet")

    def export(self) -> None:
        """Export what the run recommends."""
        self.advisor("export", "run", "export")


def demo(case: Case) -> None:
    """The bundled pool, a set that decodes together, and methods."""
    case.select(*DEMO, "--limit", "24", "--device", "cpu")
    case.advisor("evaluate", "run", "--methods", "unite,geometric,voting", "--limit", "16", "--quiet")
    case.export()


def predicted(case: Case) -> None:
    """A set that is chosen by its predicted gain."""
    case.select(*DEMO, "--limit", "12", "--device", "cpu", "--set-by", "predicted")


def thinking(case: Case) -> None:
    """Models that think."""
    case.select("--pool", "demo-thinking", *DEMO[2:], "--think", "apart", "--limit", "12", "--device", "cpu")
    case.export()


@contextlib.contextmanager
def _servers(**task: Any) -> Iterator[str]:
    """A pool and a task in the current folder, and a server that adds and judges; the line of its judge."""
    from tests.servers import Adders, as_json, models, raw_server

    adds = Adders()

    def answer(path: str, body: dict[str, Any]) -> Any:
        if path.endswith("/models"):
            return models("ada", "bob", "cyd", "judge", "checker")
        if body["model"] in ("judge", "checker") and "|" in body["prompt"]:
            # The checker says something else than the judge in places.
            said = zlib.crc32(body["prompt"].encode()) >> (9 if body["model"] == "judge" else 10)
            text = f"[[{'AB'[said % 2]}]]" if body["prompt"].count("|") > 1 else f"[[{said % 4}]]"
            return as_json({"choices": [{"text": text, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}})
        return adds(path, {**body, "model": "ada" if body["model"] in ("judge", "checker") else body["model"]})

    for split, first in (("dev", 0), ("held_out", 100)):
        sums = [{"question": f"{n} + {3 * n % 17}", "answer": str(n + 3 * n % 17)} for n in range(first, first + 20)]
        Path(f"{split}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in sums), encoding="utf-8")
    texts = {"name": "sums", "prompt": "What is {{question}}?", "reference": "{{answer}}", "metric": "number"}
    data = {split: f"{split}.jsonl" for split in ("dev", "held_out")}
    Path("task.yaml").write_text(json.dumps({**texts, "data": data, "max_new_tokens": 16, **task}), encoding="utf-8")
    with raw_server() as raw:
        raw.answer = answer
        lines = [
            f"openai:{raw.url}#{name} chat_template=never revision=v1 price_in={price} price_out={2 * price}\n"
            for price, name in enumerate(("ada", "bob", "cyd"), start=1)
        ]
        Path("pool.txt").write_text("".join(lines), encoding="utf-8")
        yield f"openai:{raw.url}#{{}} chat_template=never revision=v1"


SUMS = ("--pool", "pool.txt", "--task", "task.yaml", "--max-gap", "50")


def servers(case: Case) -> None:
    """Candidates behind a server that answers by a recording."""
    with _servers():
        case.select(*SUMS)
        case.export()


def fusion(case: Case) -> None:
    """A model that writes from the others' drafts."""
    with _servers():
        case.select(*SUMS, "--fusion", "best rounds=2")
        case.export()


def judge(case: Case) -> None:
    """Grades of a judge, another judge, and labels of people."""
    with _servers(metric="judge", judge={"prompt": "{{question}} | {{response}}", "scale": [0, 3]}) as line:
        case.select(*SUMS, "--judge", line.format("judge"), "--judge", line.format("checker"))
    samples = [json.loads(text) for text in Path("run/samples.jsonl").read_text(encoding="utf-8").splitlines()]
    with Path("labels.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(("id", "model", "label"))
        for number, sample in enumerate(samples[-16:]):
            csv.writer(file).writerows((sample["id"], name, number % 3 and 1) for name in sample["responses"])
    case.printed["judge"] = json.loads(case.advisor("judge", "run", "--labels", "labels.csv", "--json", "--quiet"))


def comparing_judge(case: Case) -> None:
    """A judge that compares two responses."""
    compares = {"mode": "pairwise", "prompt": "{{question}} | {{response_a}} | {{response_b}}"}
    with _servers(metric="judge", judge=compares) as line:
        case.select(*SUMS, "--judge", line.format("judge"))


def labels(case: Case) -> None:
    """Labels in place of references, in two rounds."""
    from tests.golden import logs

    def fill() -> None:
        rows = list(csv.DictReader(io.StringIO(Path("labels.csv").read_text(encoding="utf-8"))))
        for row in rows:
            right = str(int(row["question"].partition(" ")[0]) + 3)
            row["right"] = next((letter for letter in "ABCD" if row.get(letter) == right), "none")
        with Path("labels.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
        case.printed.setdefault("labels", []).append([" ".join(map(str, row.values())) for row in rows])

    logs.pool(case.folder, scored=False)
    case.advisor("label", "--logs", "sums.jsonl", "--quiet")
    fill()
    case.advisor("label", "--logs", "sums.jsonl", "--labels", "labels.csv", "--accuracy", "10", "--quiet")
    fill()
    case.select("--logs", "sums.jsonl", "--labels", "labels.csv")


def _of_logs(name: str) -> Callable[[Case], None]:
    def run(case: Case) -> None:
        from tests.golden import logs

        folder = case.folder / "logs"
        folder.mkdir()
        logs.FORMATS[name](folder)
        # The advice on the same answers is the same: of all four models it is recorded once.
        case.select("--logs", "logs", *(() if name == "pool" else ("--only", "!*small")))

    return run


def keys(case: Case) -> None:
    """The keys of stored responses."""
    from tests.golden.keys import all_keys

    case.printed["keys"] = all_keys(case.folder)


def help_texts(case: Case) -> None:
    """The help of each command, in lines."""
    import typer

    from advisor.cli import app

    commands: Any = typer.main.get_command(app)
    for words in ([], *([name] for name in commands.commands)):
        name = " ".join(["advisor", *words])
        if words != ["lm-eval"]:  # that is lm-eval's own
            shown = case.advisor(*words, "--help")
            if "--help-all" in shown:
                shown = case.advisor(*words, "--help-all")
            case.printed[name] = shown.replace(str(ROOT), "PROJECT").splitlines()


FORMATS = ("pool", "lm_eval", "inspect", "helm", "every_eval_ever", "table")
CASES: dict[str, Callable[[Case], None]] = {
    **{each.__name__: each for each in (demo, predicted, thinking, servers, fusion, judge, comparing_judge, labels)},
    **{f"logs_{name}": _of_logs(name) for name in FORMATS},
    **{each.__name__: each for each in (keys, help_texts)},
}


def _record(out: Path, work: Path) -> None:
    """Run each case in a folder of its own, and write what is recorded of it."""
    from tests.golden.compare import dump, recorded

    stored: set[str] = set()
    for name, run in CASES.items():
        case = Case(work / name)
        case.folder.mkdir()
        os.chdir(case.folder)
        places = {str(case.folder): "FOLDER", str(work): "WORK", str(ROOT): "PROJECT"}
        try:
            run(case)
        except Exception as error:  # noqa: BLE001  # the other cases are of use
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
            case.printed["failed"] = str(error)
        (out / name).mkdir(parents=True)
        found = [
            path for part in ("run", "export") for path in sorted((case.folder / part).rglob("*")) if path.is_file()
        ]
        about = {"files": [str(path.relative_to(case.folder)) for path in found], **case.printed}
        if (report := case.folder / "run/report.html").exists():
            about["titles"] = re.findall(r"<h[12]><bdi>(.*?)</bdi></h", report.read_text(encoding="utf-8"))
        if Path(f"{os.environ['XDG_CACHE_HOME']}/unite-advisor/responses.sqlite").exists():
            new = _stored() - stored
            stored |= new
            # The address of a server, with its port, is in its responses' keys.
            digest = hashlib.sha256("".join(sorted(new)).encode()).hexdigest()
            is_known = not (case.folder / "pool.txt").exists()
            about["stored"] = {"responses": len(new), "keys": digest if is_known else "..."}
        keep = places if name != "keys" else {}
        values: dict[str, Any] = {"case.json": about if name == "keys" else recorded(about, keep)}
        for path in found:
            if path.name in FILES:
                text, is_lines = path.read_text(encoding="utf-8"), path.suffix == ".jsonl"
                value = [json.loads(line) for line in text.splitlines()] if is_lines else json.loads(text)
                values[f"{path.stem}.json"] = recorded(value, places)
        for file, value in values.items():
            (out / name / file).write_text(f"{dump(value)}\n", encoding="utf-8")


def _stored() -> set[str]:
    path = f"{os.environ['XDG_CACHE_HOME']}/unite-advisor/responses.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as cache:
        return {key for (key,) in cache.execute("SELECT key FROM responses")}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _record(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        shutil.rmtree(EXPECTED, ignore_errors=True)
        sys.exit(write(EXPECTED) or 0)
