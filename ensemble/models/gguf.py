"""GGUF, the file format of llama.cpp with a whole model in one file: checks and memory needs before it is loaded.

transformers reads GGUF files and converts their quantised weights to ``dtype`` (``auto`` is float32). So a file with 4
bits a weight needs as much memory as the unquantised model.
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
"""Libraries that transformers needs to read a GGUF file."""


def check_file(path: Path) -> None:
    """Check that a file exists and begins like a GGUF file.

    Raises:
        InputError: The file does not exist, cannot be read, or has another format.
    """
    if not path.is_file():
        raise InputError(f"{path}: this file does not exist; give a .gguf file, a model's folder, or a hub id")
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if head != _MAGIC:
        raise InputError(f"{path}: not a GGUF file, because it does not begin with GGUF; is the download complete?")


def check_name(name: str) -> None:
    """Check that GGUF files can be read here, and that a file's name does not show that it is one of several parts.

    Raises:
        InputError: A library is missing, or the file is one of several parts.
    """
    if missing := [library for library in _NEEDED if find_spec(library) is None]:
        raise InputError(
            f"{name}: GGUF files need {' and '.join(missing)}, which is not installed; "
            "pip install 'unite-advisor[gguf]'"
        )
    # A file that is the only part (00001-of-00001) is whole.
    if (part := _PART.search(name)) and int(part[1]) > 1:
        raise InputError(
            f"{name}: one of {int(part[1])} parts, and transformers reads only whole files; join the parts with "
            "llama-gguf-split --merge"
        )


def dense_size(path: Path, dtype: torch.dtype) -> int:
    """Bytes of a file's weights after conversion to a dtype; 0 if the file's table of tensors is damaged."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except Exception:  # noqa: BLE001  # a damaged file raises many kinds of errors; loading it reports them
        return 0
    # The file's own size does not help, because its weights are quantised.
    return sum(int(tensor.n_elements) for tensor in reader.tensors) * dtype.itemsize
