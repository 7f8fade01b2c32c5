"""Data sets that ``datasets.save_to_disk`` wrote: a folder with Arrow files, or one folder for each split.

    exported/dataset_dict.json                  {"splits": ["train", "test"]}
    exported/train/state.json                   {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], ...}
    exported/train/data-00000-of-00001.arrow    record batches as a stream

The files are read without `datasets`, so nothing but these two kinds of files is opened, and no code of the folder
runs. Arrow can repeat one value a million times in a few bytes: dictionaries, run lengths, views, compressed buffers.
Data sets have none of these, so they are refused instead of limited.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from advisor.tables.rows import MOST_COLUMNS, MOST_ROWS, Row, errors_of_library, plain
from advisor.tables.streams import json_object
from ensemble.errors import InputError

_SPLITS, _STATE = "dataset_dict.json", "state.json"
_RECORD_BATCH = 3  # the kind of a message, in Arrow's Message.fbs


def is_saved(folder: Path) -> bool:
    """Whether a folder is a data set, or one split of it, that ``save_to_disk`` wrote."""
    # Not Path.is_file, which raises an error for a name that is too long.
    return any(os.path.isfile(folder / name) for name in (_SPLITS, _STATE))  # noqa: PTH113


def saved_splits(folder: Path) -> list[str]:
    """The splits of a data set, each a folder in this one; empty if the folder is itself one split.

    Raises:
        InputError: The list of the splits cannot be used.
    """
    if not (folder / _SPLITS).is_file():
        return []
    names = json_object(folder / _SPLITS).get("splits")
    # A name with a slash would lead out of the folder.
    if not isinstance(names, list) or not all(isinstance(name, str) and _is_name(name) for name in names):
        raise InputError(f"{folder / _SPLITS}: `splits` is not a list of names of folders; save the data set again")
    return names


def saved_files(folder: Path) -> list[Path]:
    """The Arrow files of one split, in their order.

    Raises:
        InputError: The folder is no split that ``save_to_disk`` wrote.
    """
    if not (folder / _STATE).is_file():
        splits = saved_splits(folder)
        way_out = f"give one of its splits, for example {folder / splits[0]}" if splits else "give another folder"
        raise InputError(f"{folder} is not one split of a data set that datasets.save_to_disk wrote; {way_out}")
    entries = json_object(folder / _STATE).get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries or ()]
    if not all(isinstance(name, str) and _is_name(name) for name in names):
        raise InputError(f"{folder / _STATE}: `_data_files` is not a list of file names; save the data set again")
    return [folder / str(name) for name in names]


def arrow_rows(path: Path, data: bytes) -> Iterator[Row]:
    """The rows of an Arrow file.

    Args:
        path: The file, for messages.
        data: Its content.

    Raises:
        InputError: It is damaged, or has types that can repeat values without limit.
    """
    import pyarrow as pa

    number = 0
    with errors_of_library(path):
        messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(data))
        schema = pa.ipc.read_schema(messages.read_next_message())
    if len(schema) > MOST_COLUMNS:
        raise InputError(f"{path}: it has {len(schema):,} columns; give at most {MOST_COLUMNS:,}")
    for field in schema:
        _check_type(path, field.name, field.type)
    while True:
        with errors_of_library(path):
            try:
                message = messages.read_next_message()
            except StopIteration:
                return
            if _may_expand(message.metadata.to_pybytes()):
                raise InputError(f"{path}: it is compressed or has dictionaries; write it with datasets.save_to_disk")
            batch = pa.ipc.read_record_batch(message, schema)
            # Offsets that lead out of a buffer would crash this process instead of raising an error.
            batch.validate(full=True)
            for column in batch.columns:
                _check_length(path, column)
            # Columns of nulls need no bytes, and each cell becomes an object here.
            if batch.num_rows * len(schema) > MOST_ROWS:
                raise InputError(f"{path}: it has over {MOST_ROWS:,} cells in a batch; write smaller ones")
            rows = batch.to_pylist()
        for row in rows:
            number += 1
            yield {name: plain(value) for name, value in row.items()}, f"{path} (row {number})"


def _is_name(name: str) -> bool:
    return Path(name).name == name and "\0" not in name


def _check_type(path: Path, name: str, kind: Any) -> None:
    from pyarrow import types

    if types.is_struct(kind):
        for field in kind:
            _check_type(path, name, field.type)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        _check_type(path, name, kind.value_type)
    elif not (
        types.is_primitive(kind)
        or types.is_null(kind)
        or types.is_decimal(kind)
        or any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))
    ):
        raise InputError(f"{path}: the column {name[:60]!r} has the type {str(kind)[:60]}, not read; remove it")


def _check_length(path: Path, array: Any) -> None:
    # Nulls and empty structs need no bytes, so the size of the file does not limit how many there are.
    if len(array) > MOST_ROWS:
        raise InputError(f"{path}: it has over {MOST_ROWS:,} values in a column; split it")
    if hasattr(array, "flatten"):
        inner = array.flatten()
        for child in inner if isinstance(inner, list) else [inner]:
            _check_length(path, child)


def _may_expand(metadata: bytes) -> bool:
    """Whether a message is something else than a plain record batch, from its flatbuffer: dictionary, compressed."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    kind, batch = _field(metadata, root, 1), _field(metadata, root, 2)
    if kind is None or batch is None or metadata[kind] != _RECORD_BATCH:
        return True
    (offset,) = struct.unpack_from("<I", metadata, batch)
    return _field(metadata, batch + offset, 3) is not None  # RecordBatch.compression


def _field(metadata: bytes, table: int, slot: int) -> int | None:
    """The position of a field of a flatbuffer's table; None if the table lacks it."""
    (back,) = struct.unpack_from("<i", metadata, table)
    size, place = struct.unpack_from("<H", metadata, table - back)[0], 4 + 2 * slot
    if place >= size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, table - back + place)
    return table + offset if offset else None
