"""A process that has loaded the libraries, and forks a child for each command: loading takes longer than most commands.

    python warm.py SOCKET         says `ready`, then answers `client.py`, which stands for `advisor` and `python`
    request: the command's three streams, and {"argv", "cwd", "env"} as a line of JSON
    answer: the child's process id, then its exit status, a line each; no status where it ended with a traceback

`python --blocks` runs what standard input has, a JSON string a line, in one namespace, and says `done` after each.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
from typing import Any

LIBRARIES = (
    "advisor.cli",
    "advisor.commands.select",
    "advisor.jobs.session",
    "advisor.run.plan",
    "reports.terminal",
    "advisor.run.asking",
    "ensemble.api",
    "ensemble.methods.unite",
    "reports.page",
    "sklearn.feature_extraction.text",
    *(f"transformers.models.{name}.modeling_{name}" for name in ("gpt_neox", "llama", "mistral", "olmo2")),
    "transformers.models.auto.tokenization_auto",
)
"""What the commands load sooner or later; the architectures are those of the demo's models."""


def serve(path: str) -> None:
    """Wait for requests, and fork."""
    for name in LIBRARIES:
        __import__(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are nobody's to wait for
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _answer(connection)
                return
            connection.close()


def _answer(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, streams, _, _ = socket.recv_fds(connection, 2**16, 3)
    while not data.endswith(b"\n"):
        data += connection.recv(2**16)
    request = json.loads(data)
    connection.sendall(f"{os.getpid()}\n".encode())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Not those of the parent, which know where these numbers led there.
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    status = _status(request["argv"])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    connection.sendall(f"{status}\n".encode())


def _status(argv: list[str]) -> int:
    try:
        _run(argv)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _run(argv: list[str]) -> None:
    """What `advisor ...` and `python ...` do."""
    name, *arguments = argv
    sys.argv = argv
    sys.path[0] = ""
    if name == "advisor":
        from advisor.cli import main

        main()
    elif arguments[:1] == ["--blocks"]:
        _run_blocks()
    elif arguments[:1] == ["-m"]:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[:1] == ["-c"]:
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[:1] in ([], ["-"]):
        exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def _run_blocks() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line in sys.stdin:
        exec(compile(json.loads(line), "<block>", "exec"), namespace)
        print("done", flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
