"""Task files of tests: written with usual keys, loaded, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.tasks import Task, load_task
from ensemble.errors import InputError

KEYS = {"name": "sums", "prompt": "{{question}}", "reference": "{{answer}}", "metric": "exact_match"}


def write(folder: Path, data: Any, *, without: str = "", **keys: Any) -> Path:
    """Write a task file with these keys instead of the usual ones."""
    content = {"data": data, **KEYS, **keys}
    content.pop(without, None)
    path = folder / "sums.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
    return path


def load(folder: Path, data: Any, chosen: str = "", *, options: dict[str, Any] | None = None, **keys: Any) -> Task:
    """A task with these keys instead of the usual ones; of one file as data the held-out questions."""
    splits = {"dev": data, "held_out": data} if isinstance(data, str) else data
    split = {"split": "held_out"} if isinstance(data, str) else {}
    return load_task(f"{write(folder, splits, **keys)}{chosen}", **{**split, **(options or {})})


def refusal(folder: Path, data: Any, **keys: Any) -> str:
    """The line that a task is refused with."""
    with pytest.raises(InputError) as caught:
        load(folder, data, **keys)
    assert "\n" not in str(caught.value)
    return str(caught.value)
