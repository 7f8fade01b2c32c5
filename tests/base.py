"""The commands of an installation without extras, one after the other: ``python tests/base.py MODULE ...``.

The modules that are named cannot be imported, and neither can those that Windows lacks. `make package` runs it where
only the wheel is installed. It prints a JSON object: the status of each command, and what it wrote.
"""

import builtins
import csv
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import PathFinder
from io import StringIO
from pathlib import Path

from servers import SKIPS, Adders, raw_server

COMMANDS = (
    "log.csv",
    "servers.txt",
    "select --logs log.csv --out logs",
    "compare log.csv",
    "label --pool servers.txt --task task.yaml",
    "judge logs",
    "report logs",
    "init questions.jsonl",
    "doctor",
    "select --pool servers.txt --task task.yaml --dry-run",
    "select --pool servers.txt --task task.yaml --out run",
    "run run 5+6",
    "check run --pool servers.txt --task fresh.yaml",
    "export run strategy",
    "serve run --port 0",
)
"""What has to work."""
NEEDS = {
    "select --pool local.txt --task task.yaml": ("torch", "local"),
    "run --models org/model --models org/other 5+6": ("torch", "local"),
    "select --pool servers.txt --task gsm8k": ("datasets", "local"),
    "init table.parquet": ("pyarrow", "tables"),
    "profile --pool servers.txt --task task.yaml --engine ray": ("ray", "ray"),
    "select --logs log.json": ("inspect_ai", "inspect"),
    "lm-eval run": ("lm_eval", "lm-eval"),
}
"""What has to say that it needs a module, and the extra that has it."""
POSIX = ("fcntl", "resource", "pwd", "termios")


def without(modules: list[str]) -> None:
    """Let modules be missing, and to this project also what Windows lacks: other libraries choose by the system."""

    class Finder(PathFinder):
        @classmethod
        def find_spec(cls, fullname, path=None, target=None):
            return None if fullname.partition(".")[0] in modules else super().find_spec(fullname, path, target)

    def imported(name, given=None, *more, **named):
        if name in POSIX and given and given["__name__"].startswith(("advisor.", "ensemble.", "reports.")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, given, *more, **named)

    sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
    builtins.__import__, real = imported, builtins.__import__
    del os.fork


def write_files(url: str) -> None:
    """Questions, what three models answered, tasks and pools."""
    chance = random.Random(0)
    pairs = [(first, chance.randint(1, 90)) for first in chance.sample(range(1, 999), 100)]
    lines = [f'{{"id": {n}, "question": "{a} + {b}", "answer": {a + b}}}\n' for n, (a, b) in enumerate(pairs)]
    for name, part in {"questions": lines[:60], "fresh": lines[60:]}.items():
        Path(f"{name}.jsonl").write_text("".join(part), encoding="utf-8")
    with Path("log.csv").open("w", newline="", encoding="utf-8") as log:
        rows = csv.writer(log)
        rows.writerow(("question", "model", "response", "score"))
        for a, b in pairs:
            for model, skips in SKIPS.items():
                is_wrong = (a + b) % skips == 0
                rows.writerow((f"{a} + {b}", model, a + b + is_wrong, int(not is_wrong)))
    task = {"name": "sums", "prompt": "{{question}} =", "reference": "{{answer}}", "metric": "number"}
    for name, data in {"task": "questions.jsonl", "fresh": "fresh.jsonl"}.items():
        given = json.dumps({**task, "data": {"dev": data, "held_out": data}})
        Path(f"{name}.yaml").write_text(given, encoding="utf-8")
    servers = (f"openai:{url}#{model} name={model} chat_template=never\n" for model in SKIPS)
    Path("servers.txt").write_text("".join(servers), encoding="utf-8")
    Path("local.txt").write_text("org/model\n", encoding="utf-8")
    Path("table.parquet").write_bytes(b"PAR1")
    Path("log.json").write_text('{"eval": {"task": "t", "created": ""}, "status": "success", "samples": [{}]}', "utf-8")


def ask(said: StringIO) -> None:
    """Ask the server whose address is written, and stop it."""
    while "/v1" not in said.getvalue():
        time.sleep(0.01)
    body = json.dumps({"model": "run", "messages": [{"role": "user", "content": "5 + 6"}]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{said.getvalue().strip()}/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            said.write(json.load(response)["choices"][0]["message"]["content"])
    finally:
        os.kill(os.getpid(), signal.SIGINT)


def call(command: str) -> tuple[int, str]:
    """Run a command in this process; its status, and what it wrote."""
    from advisor.cli import main

    sys.argv = ["advisor", *command.split()]
    status, out, err = 0, StringIO(), StringIO()
    if "serve" in sys.argv:
        threading.Thread(target=ask, args=(out,), daemon=True).start()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
    return status, f"{err.getvalue()}{out.getvalue()}"


if __name__ == "__main__":
    without(sys.argv[1:])
    # A command that fails may close standard output.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, raw_server() as raw:
        os.chdir(folder)
        os.environ |= {"XDG_CACHE_HOME": f"{folder}/cache", "XDG_STATE_HOME": f"{folder}/state"}
        raw.answer = Adders()
        write_files(raw.url)
        called = (*COMMANDS, *NEEDS) if len(sys.argv) > 1 else COMMANDS
        found = {command: call(command.replace("URL", raw.url)) for command in called}
        os.chdir("/")
    print(json.dumps(found), file=output, flush=True)
    sys.exit(any(status != 0 for command, (status, _) in found.items() if command in COMMANDS))
