"""What an installation without extras does, and what it says where it needs one. See base.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from base import COMMANDS

from ensemble.common.extras import EXTRAS

FILE = Path(__file__).with_name("base.py")
ALSO = ("gguf", "accelerate", "rapidfuzz", "tqdm")
"""What the extras bring and the code does not import, or in one place alone."""


@pytest.fixture(scope="module")
def wrote() -> dict[str, tuple[int, str]]:
    """The status of each command, and what it wrote, in a process that imports no module of an extra."""
    blocked = [module for modules in EXTRAS.values() for module in modules]
    done = subprocess.run([sys.executable, FILE, *blocked, *ALSO], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_needs_no_extra_and_nothing_that_windows_lacks(wrote: dict[str, tuple[int, str]], name: str) -> None:
    status, text = wrote[name]
    assert status == 0, text


def test_the_base_serves_a_strategy_of_models_behind_servers(wrote: dict[str, tuple[int, str]]) -> None:
    assert wrote["serve"][1].endswith("It is 11.")


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("a model", "torch", "local"),
        ("models", "torch", "local"),
        ("the hub", "datasets", "local"),
        ("Parquet", "pyarrow", "tables"),
        ("Ray", "ray", "ray"),
        ("Inspect", "inspect_ai", "inspect"),
        ("lm-eval", "lm_eval", "lm-eval"),
    ],
)
def test_one_line_says_which_extra_a_command_needs_and_how_to_install_it(
    wrote: dict[str, tuple[int, str]], name: str, module: str, extra: str
) -> None:
    status, text = wrote[name]
    assert status == 2
    (line,) = [line for line in text.splitlines() if line.startswith("advisor: ")]
    what, _, way_out = line.partition(f" needs {module}, which is not installed; ")
    assert what and way_out.startswith("pip install '") and way_out.endswith(f"[{extra}]'")
