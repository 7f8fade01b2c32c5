"""The pages of the pools say what `benchmarks.pools` measured, and the real example says what the command says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pages import blocks

from benchmarks.studies import pools

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / name for name in ("pools.md", "pools-rules.md", "pools-advice.md")]
BY_HAND = ("| pool | kind |", "| rule: ")
"""How the tables begin that other commands or commits measured, which the page names."""
EXAMPLE = ROOT / "docs" / "how-to" / "advice-from-logs.md"
LOG = ROOT.parent / "shared" / "pools" / "math-l5.jsonl.xz"
PLOTS = ("gap", "length", "regret", "strategies", "voters")
RUN = "from advisor.cli import main; main()"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plots")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *_, **__: None)
        assert pools.main(["--kept", "--tables", "--plots", str(folder)]) == 0
    return folder


def test_the_page_has_the_tables_of_the_kept_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert pools.main(["--kept", "--tables"]) == 0
    tables = capsys.readouterr().out.strip().split("\n\n")
    page = "\n\n".join(each.read_text(encoding="utf-8") for each in PAGES)
    assert [table for table in tables if table not in page] == []
    on_page = [part for part in re.split(r"\n\n+", page) if part.startswith("| ")]
    assert len(on_page) == len(tables) + len(BY_HAND)
    assert sum(part.startswith(BY_HAND) for part in on_page) == len(BY_HAND)


def test_the_figures_in_the_sentences_are_in_the_tables() -> None:
    lines = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()]
    in_tables = {number for line in lines if line.startswith("| ") for number in re.findall(r"\d+\.\d+", line)}
    said = [number for line in lines if not line.startswith("| ") for number in re.findall(r"\b\d+\.\d+\b", line)]
    assert said
    assert [number for number in said if number not in in_tables] == []


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_has_the_words_of_the_kept_figures(name: str, drawn: Path) -> None:
    kept, again = (folder / f"{name}.svg" for folder in (ROOT / "docs" / "pools", drawn))
    words = [
        sorted("".join(each.itertext()) for each in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text"))
        for file in (kept, again)
    ]
    assert len(words[0]) > 10
    assert words[0] == words[1]


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_small_and_has_a_dark_theme(name: str) -> None:
    text = (ROOT / "docs" / "pools" / f"{name}.svg").read_text(encoding="utf-8")
    assert len(text) < 100_000
    assert "prefers-color-scheme:dark" in text
    # All colours of the drawing change with the theme.
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", text.partition("</style>")[2]))
    assert colours <= set(re.findall(r'\[style\*="fill: (#[0-9a-f]{6})"\]', text))


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
