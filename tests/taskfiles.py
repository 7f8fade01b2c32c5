"""Task files of tests: written with usual keys, loaded, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.tasks import Task, load_task
from ensemble.errors import InputError

KEYS = {"name": "sums", "prompt": "{{question}}", "reference": "{{answer}}", "metric": "exact_match"}


def load(
    folder: Path, data: Any, chosen: str = "", *, options: dict[str, Any] | None = None, without: str = "", **keys: Any
) -> Task:
    """A task with these keys instead of the usual ones; of one file as data the held-out questions."""
    splits = {"dev": data, "held_out": data} if isinstance(data, str) else data
    content = {"data": splits, **KEYS, **keys}
    content.pop(without, None)
    # JSON is YAML.
    (folder / "sums.yaml").write_text(json.dumps(content), encoding="utf-8")
    split = {"split": "held_out"} if isinstance(data, str) else {}
    return load_task(f"{folder / 'sums.yaml'}{chosen}", **{**split, **(options or {})})


def refusal(folder: Path, data: Any, **keys: Any) -> str:
    """The line that a task is refused with."""
    with pytest.raises(InputError) as caught:
        load(folder, data, **keys)
    assert "\n" not in str(caught.value)
    return str(caught.value)
