"""GGUF, the file format of llama.cpp with a whole model in one file: checks, and files that were dequantized before.

transformers reads GGUF files and converts their quantised weights to ``dtype`` (``auto`` is float32). So a file with 4
bits a weight needs as much memory as the unquantised model.

The header is read here first. The library that transformers uses makes several Python objects for every number of an
array, so a file of 8 MB can take minutes and gigabytes there.

In the user's cache folder a file is known by the SHA-256 of its content, and by the versions of the libraries that read
it. From the second start on it is memory-mapped. Entries that were used longest ago leave when there is no more room.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble.common.files import default_cache_dir, remembered_sha256, sha256
from ensemble.errors import InputError
from ensemble.models.hub import file_of, pinned
from ensemble.models.spec import Checkpoint

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

BESIDE_GGUF = ("tokenizer.json", "tokenizer_config.json")
"""Files in the folder of a GGUF file that transformers reads, too."""
TEMPLATE = Path("additional_chat_templates", "default.jinja")
"""The file that goes before a tokenizer's other chat templates."""
_MAGIC = b"GGUF"
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
COUNT = re.compile(r"layer|block|depth|expert|head|label", re.IGNORECASE)
"""Keys of a configuration whose numbers count parts of the model."""
MOST_PARTS = 10**6
"""The largest such number. Configurations make a list entry for each part before any weights are read."""
_TEXT, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The types of values, as struct writes them."""
# A vocabulary has a text, a score (32 bits) and a type (32 bits) for each token, and one or two merges. Arrays of other
# numbers have one for each layer.
_MOST_ENTRIES = {_TEXT: 2**21, 4: 2**20, 5: 2**20, 6: 2**20}
_MOST_OTHERS = 2**16
_MOST_DIMENSIONS = 8


def check_file(path: Path) -> None:
    """Check that a file has a GGUF header that can be read in a short time; InputError if not."""
    if not path.is_file():
        raise InputError(f"{path}: this file does not exist; give a .gguf file, a model's folder, or a hub id")
    weight_count(path)


def check_name(name: str) -> None:
    """Raise an InputError if a file's name shows that it is one of several parts."""
    # A file that is the only part (00001-of-00001) is whole.
    if (part := _PART.search(name)) and int(part[1]) > 1:
        raise InputError(
            f"one of {int(part[1])} parts, and transformers reads only whole files; join the parts with "
            "llama-gguf-split --merge",
            of=name,
        )


def weight_count(path: Path) -> int:
    """The number of weights by a file's header; InputError if that cannot be read, or is damaged or very large."""
    try:
        status = path.stat()
        return _weight_count(path, (status.st_size, status.st_mtime_ns, status.st_ino))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, struct.error) as error:
        raise InputError(
            f"{path}: its GGUF file {path.name} cannot be used ({error}); it may be damaged: download it again, or "
            "take the model's safetensors"
        ) from error


@lru_cache
def _weight_count(path: Path, _state: tuple[int, ...]) -> int:
    # Several checks ask for it, and a header with a large vocabulary takes a second.
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise InputError(f"{path}: not a GGUF file, because it does not begin with GGUF; is the download complete?")
        # Mapped, because the header's length is unknown and the file may be larger than the memory.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(data).weights()


class _Header:
    """The header of a GGUF file, read from front to back."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(_MAGIC)
        # The version is a small number; in the other byte order its low half is 0.
        self._order = "<" if struct.unpack_from("<I", data, self._at)[0] & 0xFFFF else ">"
        self._entries = dict.fromkeys((_TEXT, *_NUMBERS), 0)

    def weights(self) -> int:
        self._take("I")
        tensors, keys = self._take("Q"), self._take("Q")
        if max(tensors, keys) > _MOST_OTHERS:
            raise ValueError(f"{max(tensors, keys):,} entries in its header")
        for _ in range(keys):
            key = self._text().decode(errors="replace")
            kind = self._take("I")
            if kind == _ARRAY:
                self._array()
                continue
            value = self._text() if kind == _TEXT else self._take(_form(kind))
            if isinstance(value, int) and value > MOST_PARTS and COUNT.search(key):
                raise ValueError(f"{key[:60]} is {value:,}")
        return sum(self._tensor() for _ in range(tensors))

    def _tensor(self) -> int:
        """The number of weights of a tensor."""
        self._text()
        dimensions = self._take("I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions:,} dimensions")
        weights: int = prod(self._take("Q") for _ in range(dimensions))
        self._take("I")  # its type
        self._take("Q")  # its place in the file
        return weights

    def _array(self) -> None:
        kind, length = self._take("I"), self._take("Q")
        if kind == _ARRAY:
            raise ValueError("arrays within arrays")
        form = "" if kind == _TEXT else _form(kind)
        self._entries[kind] += length
        if self._entries[kind] > _MOST_ENTRIES.get(kind, _MOST_OTHERS):
            raise ValueError(f"an array of {length:,} entries")
        if form:
            self._skip(length * struct.calcsize(form))
            return
        for _ in range(length):
            self._text()

    def _text(self) -> bytes:
        length = self._take("Q")
        begin = self._at
        self._skip(length)
        return self._data[begin : self._at]

    def _take(self, form: str) -> Any:
        value = struct.unpack_from(self._order + form, self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return value

    def _skip(self, size: int) -> None:
        if size > len(self._data) - self._at:
            raise ValueError("its header is longer than the file")
        self._at += size


def _form(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"a value of the unknown type {kind}")
    return _NUMBERS[kind]


TEXT_ENTRY = "text"
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
    _keep(checkpoint, TEXT_ENTRY, lambda folder: (config.save_pretrained(folder), tokenizer.save_pretrained(folder)))


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
