"""Published or earlier numbers instead of models: the file that ``--scores`` reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor.records import Standing
from ensemble.errors import InputError

_FORM = '{"task": NAME, "profiles": [{"model": NAME, "accuracy": POINTS, "mean_length": CHARACTERS}, ...]}'


def read_standings(path: Path) -> tuple[str, tuple[Standing, ...]]:
    """The task and the numbers of a file: ``{"task": NAME, "profiles": [{model, accuracy, mean_length}, ...]}``."""
    try:
        # Tools on Windows write a byte order mark, which JSON does not allow.
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"--scores {path}: the file does not exist; give a JSON file with profiles") from None
    except OSError as error:
        raise InputError(
            f"--scores {path}: cannot be read ({error.strerror}); give a JSON file with profiles"
        ) from None
    except (ValueError, RecursionError):
        raise InputError(f"--scores {path}: it is not JSON; write it in the form {_FORM}") from None
    entries = data.get("profiles") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise InputError(f"--scores {path}: needs the form {_FORM}")
    standings = tuple(_standing(entry, f"--scores {path}: profile {n}") for n, entry in enumerate(entries, start=1))
    names = [standing.model for standing in standings]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"--scores {path}: the model {twice!r} is listed twice; give each model another name")
    # The task's name becomes the name of the run folder.
    task = data.get("task", "unnamed")
    if not isinstance(task, str):
        raise InputError(f'--scores {path}: "task" must be a name')
    return task, standings


def _standing(entry: object, place: str) -> Standing:
    values: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    model = values.get("model")
    if not isinstance(model, str) or not model:
        raise InputError(f'{place}: needs "model", a name')
    # Names are shown on the terminal and in lines of the report.
    if not model.strip() or not model.isprintable():
        raise InputError(f"{place}: the name {model!r} must be printable and not blank")
    accuracy, length = _number(values.get("accuracy")), _number(values.get("mean_length"))
    if accuracy is None or not 0 <= accuracy <= 100:
        raise InputError(f'{place} ({model}): needs "accuracy", points from 0 to 100')
    if values.get("mean_length") is not None and (length is None or length < 0):
        raise InputError(f'{place} ({model}): "mean_length" must be characters, 0 or more, or left out')
    return Standing(model, accuracy, length)


def _number(value: object) -> float | None:
    """A finite JSON number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON integers have no upper limit
        return None
    return number if math.isfinite(number) else None
