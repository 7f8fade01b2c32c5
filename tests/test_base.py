"""What an installation without extras does, and what it says where it needs one. See base.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from base import COMMANDS, NEEDS

from ensemble.common.extras import EXTRAS

Wrote = dict[str, tuple[int, str]]
FILE = Path(__file__).with_name("base.py")
ALSO = ("gguf", "accelerate", "rapidfuzz", "tqdm")
"""What the extras bring and the code does not import, or in one place alone."""


@pytest.fixture(scope="module")
def wrote() -> Wrote:
    """The status of each command, and what it wrote, in a process that imports no module of an extra."""
    blocked = [module for modules in EXTRAS.values() for module in modules]
    done = subprocess.run([sys.executable, FILE, *blocked, *ALSO], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: Wrote = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_needs_no_extra_and_nothing_that_windows_lacks(wrote: Wrote, command: str) -> None:
    status, text = wrote[command]
    assert status == 0, text
    assert not command.startswith("serve ") or text.endswith("It is 11.")


@pytest.mark.parametrize("command", NEEDS)
def test_one_line_says_which_extra_a_command_needs_and_how_to_install_it(wrote: Wrote, command: str) -> None:
    (status, text), (module, extra) = wrote[command], NEEDS[command]
    assert status == 2
    (line,) = [line for line in text.splitlines() if line.startswith("advisor: ")]
    assert re.fullmatch(rf"advisor: .+ needs {module}, which is not installed; pip install '.+\[{extra}\]'", line)
