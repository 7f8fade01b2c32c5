"""GGUF, the file format of llama.cpp: a model in one file, checked and measured before it is loaded.

transformers reads such files and makes their weights dense again: a file of 4 bits a weight takes as much memory as the
model in ``dtype`` does, and ``auto`` is float32.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble.errors import InputError

if TYPE_CHECKING:
    import torch

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_NEEDED = ("gguf", "accelerate")
"""What transformers needs to read such a file."""


def check_file(path: Path) -> None:
    """Make sure that a file can be one of this format, by its name and its first bytes.

    Raises:
        InputError: There is no such file, or it is another's, or a part of one.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; give a .gguf file, a model's folder, or a hub id")
    try:
        with path.open("rb") as file:
            found = file.read(len(_MAGIC))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if found != _MAGIC:
        raise InputError(f"{path}: no GGUF file, as it does not begin with GGUF; is the download complete?")


def check_name(name: str) -> None:
    """Make sure that files of this format can be read here, and that a name is not that of a part of one.

    Raises:
        InputError: A library is missing, or the name is that of a part.
    """
    if missing := [library for library in _NEEDED if find_spec(library) is None]:
        raise InputError(
            f"{name}: GGUF files need {' and '.join(missing)}, which is not installed; "
            "pip install 'unite-advisor[gguf]'"
        )
    if (part := _PART.search(name)) and int(part[1]) > 1:
        raise InputError(
            f"{name}: one of {int(part[1])} parts, and transformers reads whole files only; join them with "
            "llama-gguf-split --merge"
        )


def dense_size(path: Path, dtype: torch.dtype) -> int:
    """Bytes of a file's weights once they are dense; 0 where its table of tensors is damaged."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except Exception:  # noqa: BLE001  # a damaged file surfaces as many errors; whoever loads it reports them
        return 0
    return sum(int(tensor.n_elements) for tensor in reader.tensors) * dtype.itemsize
