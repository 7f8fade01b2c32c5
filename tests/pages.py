r"""The examples of a Markdown page, run as they stand, from the first to the last.

```bash                       run by bash; with `advisor` and `python` at hand
```python                     run in one namespace with the page's other blocks of Python
```yaml title="refunds.yaml"  written to that file
<!-- not run: why -->         before a block that cannot run here
<!-- stays: URL -->           before a block of bash that runs beside all that follow, once the address answers
<!-- printed -->              before a block that has what the example before it wrote to standard output
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
SHELL, PYTHON = ("bash", "sh", "shell", "console"), ("python", "py")
FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>\w*)(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"<!-- (not run|stays|printed)(?:: ((?:(?!-->).)+))? -->\s*\Z", re.DOTALL)
TITLE = re.compile(r'\btitle="([^"]+)"')
SECONDS = 240


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        line: Where its code begins on the page, from 1.
        language: As written behind the fence.
        code: Its text.
        file: The file that it is the content of; None for others.
        mark: ``not run``, ``stays`` or ``printed``; empty where there is no mark.
        said: What stands behind the mark.
    """

    line: int
    language: str
    code: str
    file: str | None
    mark: str
    said: str


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for match in FENCE.finditer(text):
        indent = len(match["indent"])
        code = "".join(line[indent:] or "\n" for line in match["code"].splitlines(keepends=True))
        mark, title = MARK.search(text[: match.start()].rstrip(" ")), TITLE.search(match["info"])
        yield Block(
            line=text.count("\n", 0, match.start()) + 2,
            language=match["language"],
            code=code,
            file=title and title[1],
            mark=mark[1] if mark else "",
            said=(mark[2] or "") if mark else "",
        )


@dataclass(frozen=True, slots=True)
class Shell:
    """Where examples run.

    Attributes:
        folder: The working folder.
        env: The variables.
        python: The command that stands for ``python``.
    """

    folder: Path
    env: Mapping[str, str]
    python: tuple[str, ...]

    def run(self, page: Path) -> None:
        """Run the examples of a page; the first that fails is an AssertionError that names its line."""
        printed = ""
        with ExitStack() as stack:
            session: subprocess.Popen[str] | None = None
            for block in blocks(page.read_text(encoding="utf-8")):
                place = f"{page.name}:{block.line}"
                if block.mark == "not run":
                    continue
                if block.mark == "printed":
                    assert printed.rstrip() == block.code.rstrip(), f"{place}: printed was\n{printed}"
                elif block.mark == "stays":
                    stack.enter_context(self._beside(block, place))
                elif block.file is not None:
                    self._write(block.file, block.code)
                elif block.language in PYTHON:
                    session = session or stack.enter_context(self._session())
                    printed = self._python(session, block, place)
                elif block.language in SHELL:
                    printed = self._bash(block, place)

    def _write(self, name: str, content: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")

    def _bash(self, block: Block, place: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, (
            f"{place} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
        return done.stdout

    def _python(self, session: subprocess.Popen[str], block: Block, place: str) -> str:
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write(json.dumps(block.code) + "\n")
        session.stdin.flush()
        lines = []
        for line in session.stdout:
            if line == "done\n":
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"{place}\n{''.join(lines)[-4000:]}")

    @contextmanager
    def _session(self) -> Iterator[subprocess.Popen[str]]:
        """The interpreter of a page's blocks of Python."""
        with subprocess.Popen(
            [*self.python, "--blocks"],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as session:
            yield session

    @contextmanager
    def _beside(self, block: Block, place: str) -> Iterator[None]:
        """A command that goes on while the rest of its page runs, and is then stopped as by Ctrl-C."""
        with (self.folder / "beside.txt").open("w+") as output:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", block.code],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                deadline = time.monotonic() + 60
                while not _answers(block.said):
                    output.seek(0)
                    assert process.poll() is None, f"{place} ended with {process.returncode}\n{output.read()[-4000:]}"
                    assert time.monotonic() < deadline, (
                        f"{place}: {block.said} does not answer\n{output.read()[-4000:]}"
                    )
                    time.sleep(0.1)
                yield
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGINT)
                process.wait(60)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True  # it says no, but it is there
    except OSError:
        return False


@contextmanager
def warm_shell(folder: Path, env: Mapping[str, str]) -> Iterator[Shell]:
    """A shell in a folder, whose ``advisor`` and ``python`` are forked from a process that has loaded the libraries."""
    with TemporaryDirectory() as place:
        address = str(Path(place, "socket"))  # elsewhere, because the length of such a path is limited
        client = (sys.executable, "-I", "-S", str(HERE / "client.py"), address)
        for name in ("advisor", "python"):
            command = Path(place, name)
            command.write_text(f'#!/bin/sh\nexec {shlex.join((*client, name))} "$@"\n')
            command.chmod(0o755)
        server = subprocess.Popen(
            [sys.executable, HERE / "warm.py", address],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == "ready\n", "warm.py ended"
            yield Shell(folder, {**env, "PATH": f"{place}{os.pathsep}{env['PATH']}"}, (*client, "python"))
        finally:
            server.terminate()
            server.wait(30)
            server.stdout.close()
