"""GGUF files in the user's cache folder: dequantized once, and memory-mapped from the second start on.

A file is known by the SHA-256 of its content, and by the versions of the libraries that read it. Entries that were used
longest ago leave when there is no more room. The folder can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble.common.files import default_cache_dir, remembered_sha256, sha256
from ensemble.models.hub_request import pinned
from ensemble.models.model_files import BESIDE_GGUF, TEMPLATE, file_of
from ensemble.models.spec import Checkpoint

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

TEXT = "text"
"""The entry with the configuration and the tokenizer. The entries with weights have the name of their numeric type."""
_MOST_BYTES = 20 * 10**9
"""The size limit of all entries together. SmolLM2-135M in float32 has 0.5 GB."""
_LIST = "files.json"
_BESIDE = (*BESIDE_GGUF, str(TEMPLATE))


def cached(checkpoint: Checkpoint, kind: str) -> Path | None:
    """The folder of an entry in the form of ``save_pretrained``; None if absent, damaged or not of a GGUF file."""
    folder = _folder(checkpoint, kind)
    if folder is None or not folder.is_dir():
        return None
    try:
        hashes = json.loads((folder / _LIST).read_text(encoding="utf-8"))
        if hashes == {name: remembered_sha256(folder / name) for name in hashes} and hashes:
            with contextlib.suppress(OSError):  # a cache that cannot be written is still read
                os.utime(folder)
            return folder
    except (OSError, ValueError, AttributeError, TypeError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return None


def source(checkpoint: Checkpoint, kind: str) -> tuple[str, dict[str, Any]]:
    """The place and the keyword arguments of ``from_pretrained``: of the entry, or of the model's files without one."""
    if (folder := cached(checkpoint, kind)) is not None:
        return str(folder), {"trust_remote_code": False}
    return checkpoint.location, pinned(checkpoint).options


def keep_text(checkpoint: Checkpoint, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the configuration and the tokenizer of a GGUF file; without effect where the cache cannot be written."""
    _keep(checkpoint, TEXT, lambda folder: (config.save_pretrained(folder), tokenizer.save_pretrained(folder)))


def keep_weights(checkpoint: Checkpoint, config: PretrainedConfig, model: PreTrainedModel, dtype: str) -> None:
    """Write the dequantized weights of a GGUF file; without effect where the cache cannot be written."""
    from safetensors.torch import save_file

    # Tied weights are stored once, under the first of their names.
    state = model.state_dict()
    first_names = {(tensor.data_ptr(), tensor.shape): name for name, tensor in reversed(state.items())}
    weights = {name: state[name].contiguous() for name in first_names.values()}

    def write(folder: Path) -> None:
        config.save_pretrained(folder)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    _keep(checkpoint, dtype, write)


def _keep(checkpoint: Checkpoint, kind: str, write: Callable[[Path], object]) -> None:
    from safetensors import SafetensorError

    # A full or read-only disk costs the next start its time, and nothing else.
    with contextlib.suppress(OSError, SafetensorError):
        folder = _folder(checkpoint, kind)
        if folder is None or folder.exists():
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            fresh = Path(place, "entry")
            fresh.mkdir()
            write(fresh)
            hashes = {path.name: sha256(path) for path in fresh.iterdir() if path.is_file()}
            (fresh / _LIST).write_text(json.dumps(hashes), encoding="utf-8")
            # Fails where another process was first, whose entry is the same.
            fresh.rename(folder)
        _make_room(folder)


def _make_room(newest: Path) -> None:
    """Remove the entries that were used longest ago, until the rest is within the limit."""
    entries = sorted(newest.parent.iterdir(), key=lambda entry: (entry == newest, entry.stat().st_mtime_ns))
    sizes = {entry: sum(path.stat().st_size for path in entry.rglob("*") if path.is_file()) for entry in entries}
    while sum(sizes.values()) > _MOST_BYTES and len(sizes) > 1:
        oldest = next(iter(sizes))
        del sizes[oldest]
        shutil.rmtree(oldest, ignore_errors=True)


def _folder(checkpoint: Checkpoint, kind: str) -> Path | None:
    """Where an entry is, by everything that decides its content; None if the model is not a GGUF file that is here."""
    if checkpoint.gguf is None or (file := file_of(checkpoint, checkpoint.gguf)) is None:
        return None
    try:
        weights = remembered_sha256(file)
        beside = [path and remembered_sha256(path) for name in _BESIDE for path in [file_of(checkpoint, name)]]
    except OSError:  # the library that loads the model reports it
        return None
    what = [weights, beside, [version(name) for name in ("transformers", "tokenizers", "gguf")], kind]
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    return default_cache_dir() / "gguf" / key
