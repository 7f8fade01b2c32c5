"""Data sets that ``datasets.save_to_disk`` wrote: a folder with Arrow files, or one folder for each split.

    exported/dataset_dict.json                  {"splits": ["train", "test"]}
    exported/train/state.json                   {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], ...}
    exported/train/data-00000-of-00001.arrow    record batches as a stream

`datasets` reads them in the child process with limits. It runs no code of the folder: nothing but these files and
``dataset_info.json`` is opened, and rows are taken as Arrow, so no image or sound is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from advisor.tables.libraries import MOST_COLUMNS
from advisor.tables.rows import Row, library_columns, library_rows, plain
from advisor.tables.streams import json_object
from ensemble.errors import InputError

_SPLITS, _STATE = "dataset_dict.json", "state.json"


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


def saved_rows(folder: Path) -> Iterator[Row]:
    """The rows of one split.

    Raises:
        InputError: The folder is no split, is damaged, or has too many columns.
    """
    # It also checks that no file outside of the folder is named.
    saved_files(folder)
    names = library_columns("saved", folder)
    if len(names) > MOST_COLUMNS:
        raise InputError(f"{folder}: it has {len(names):,} columns; give at most {MOST_COLUMNS:,}")
    for values, place in library_rows("saved", folder, names):
        yield {name: plain(value) for name, value in values.items()}, place


def _is_name(name: str) -> bool:
    return Path(name).name == name and "\0" not in name
