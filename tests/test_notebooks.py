"""The notebooks: each runs, within its time, and comes to what the committed one shows."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from sharing import demo_cache

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
LIMIT = 120
"""Seconds of a processor that a notebook may take; those of a clock depend on what else the machine does."""

SHOWS = {
    "01-quickstart.ipynb": [
        r"^Recommended: Ask terse-.*a learned vote",
        r"Expected gain: [+]\d+\.\d points",
        r"' The answer is 17\.'",
    ],
    "02-reading-a-report.ipynb": [
        r"corrected \d+, made wrong \d+: p = (0\.\d{3}); the report says \1\n",
        r"disagreement 0\.\d\d",
    ],
    "03-inside-one-step.ipynb": [r"together +The answer is 81\.\n", r"'8' .* first choice of terse-mistral\n"],
    "04-real-models.ipynb": [
        r"together +['\"] girl named ",
        r"^\d+ of \d+ sets gain; the mean is [+-]\d+\.\d points\n",
    ],
}
"""Patterns that the text outputs of each have."""
NEEDS = {"04-real-models.ipynb": ("SmolLM2-135M-Instruct.Q4_1.gguf", "qwen2.5-coder-0.5b.gguf")}
"""Files of `make real` that a notebook needs."""
REAL = Path(os.environ.get("REAL", FOLDER.parent / "build" / "real"))


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def text_of(notebook: Any) -> str:
    found = outputs(notebook)
    streams = [output.text for output in found if output.output_type == "stream" and output.name == "stdout"]
    return "".join([*streams, *(output.data.get("text/plain", "") for output in found if "data" in output)])


def pictures(notebook: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


def test_each_notebook_is_tested() -> None:
    assert list(SHOWS) == NOTEBOOKS


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all notebooks keep responses."""
    return demo_cache(tmp_path_factory)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*zmq.*:RuntimeWarning")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_comes_to_what_it_shows(
    name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing := [path for path in NEEDS.get(name, ()) if not (REAL / path).exists()]:
        pytest.skip(f"{' and '.join(missing)} not in {REAL}; `make real` fetches them")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    notebook = nbformat.read(FOLDER / name, as_version=4)
    shown = pictures(notebook)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for pattern in SHOWS[name]:
        assert re.search(pattern, text_of(notebook), re.MULTILINE), pattern
    assert pictures(notebook) == shown
    assert after.ru_utime - before.ru_utime <= LIMIT


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_with_its_outputs_and_nothing_of_a_machine(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    assert len(text) < 150_000
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for output in outputs(notebook) if output.get("name") == "stderr"]
    without_pictures = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not re.search(r"/(?:tmp|home|root|Users|private)/", without_pictures)
    assert json.loads(text)["metadata"].keys() == {"kernelspec", "language_info"}
    for pattern in SHOWS[name]:
        assert re.search(pattern, text_of(notebook), re.MULTILINE), pattern
