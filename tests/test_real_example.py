"""The real example of the page on logs says what the command says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import blocks

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "docs" / "how-to" / "logs.md"
LOG = ROOT.parent / "shared" / "pools" / "math-l5.jsonl.xz"
RUN = "from advisor.cli import main; main()"


def run(command: list[str], folder: Path) -> dict[str, Any]:
    # The page's own command, with an absolute path of the log.
    arguments = [str(LOG) if argument.endswith(LOG.name) else argument for argument in command]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments, "--quiet", "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("more", ["", ",Qwen2.5-7B-Instruct"])
def test_the_real_example_says_what_the_command_recommends(more: str, tmp_path: Path) -> None:
    if not LOG.is_file():
        pytest.skip("../shared/pools/math-l5.jsonl.xz is not here")
    page = EXAMPLE.read_text(encoding="utf-8")
    block = next(block for block in blocks(page) if LOG.name in block.code)
    program, *command = shlex.split(block.code.replace("\\\n", " "))
    assert program == "advisor"
    command[command.index("--only") + 1] += more
    result = run(command, tmp_path)
    assert result["advice"]["recommendation"]["text"] in " ".join(page.split())
    # The table has the strategies of the first command.
    for each in [] if more else result["strategies"]:
        name, (low, high) = each["strategy"].replace("_", " "), each["measured_gain_ci"]
        gain = "–" if name == "single" else f"{each['measured_gain']:+.1f} ({low:+.1f} to {high:+.1f})"
        calls = f"{each['calls_per_question']:.1f}"
        assert f"| {name} | {len(each['members'])} | {each['accuracy']:.1f} | {gain} | {calls} |" in page
