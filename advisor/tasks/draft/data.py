"""The data of a new task: which files, folders or splits of the hub serve as dev and as held-out questions.

questions.csv                       one file: dev is drawn from it, and the rest is held out
train.csv test.csv                  the names tell which is which
exported/                           a folder that `datasets.save_to_disk` wrote, or one with data files
mmlu/                               folders val and test with files of the same form
openai/gsm8k                        a data set of the hub
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from advisor.tasks.data_files import TABLES, Record, data_suffix
from advisor.tasks.data_sources import FileSource, HubSource, one_line_errors
from advisor.tasks.schema import FileData, HubData
from advisor.tasks.tables.rows import is_saved, saved_splits, stem_of
from ensemble.common.extras import check_installed
from ensemble.common.files import exists
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

T = TypeVar("T")
# Not plain text, which is often a prompt or a licence beside the data.
_DATA = (*TABLES, ".jsonl", ".ndjson", ".json")
_ENOUGH = 300
"""Dev questions that are enough to choose: the strategies are compared on the held-out ones."""
# What names of splits mean, the best first. Dev prefers validation data, since models were trained on what is "train".
_DEV = ("validation", "val", "valid", "dev", "train", "training")
_HELD_OUT = ("test", "heldout", "eval", "evaluation")
_SPLIT_COLUMNS = ("split", "set", "partition", "subset", "fold")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class DraftData:
    """Where the questions of a new task are."""

    keys: Mapping[str, object]  # the value of ``data`` in the task file
    why: str  # why dev and held_out are what they are, for the comment
    records: Sequence[Record]  # all records of both, each once
    data_dir: Path | None  # the folder for ``--data``, if the data is not below the task file's folder; else None
    dev_size: int | None  # how many dev questions are enough; None for all, or for half of records that both share
    is_of_parts: bool  # whether several files are one split, so that a file's name says what a question is about
    notes: str = ""  # what of the data is not read, such as other sheets, in brackets; empty for none


def look_at(data: Sequence[str], out: Path, config: str | None = None) -> DraftData:
    """Find dev and held_out in files, a folder or a data set of the hub, and read their records."""
    if len(data) == 1 and not exists(data[0]) and _HUB_ID.fullmatch(data[0]) and not _is_data(Path(data[0])):
        return _of_hub(data[0], out, config)
    if config is not None:
        raise InputError(f"--config {config} goes with a data set of the hub; leave it out")
    paths = [Path(os.path.expanduser(text)) for text in data]  # noqa: PTH111  # which fails for no user
    if missing := next((path for path in paths if not exists(path)), None):
        raise InputError(f"{missing}: no such file or folder; correct the path")
    if len(paths) > 1 and (folder := next((path for path in paths if path.is_dir() and not is_saved(path)), None)):
        raise InputError(f"{folder} is a folder; give one folder alone, or only files")
    splits = _splits_of_folder(paths[0]) if paths[0].is_dir() else {stem_of(path): path for path in paths}
    if len(splits) < len(paths):
        raise InputError(f"two files have the same name {stem_of(paths[0])}; rename one")
    chosen, why = _choose(splits)
    return _of_files(chosen, why, out)


def _of_files(chosen: Mapping[str, Path], why: str, out: Path) -> DraftData:
    folder = Path(os.path.normpath(out.absolute().parent))
    paths = {role: Path(os.path.normpath(path.absolute())) for role, path in chosen.items()}
    # A task file names only what is below its folder; for other data, --data gives the folder.
    inside = all(path.is_relative_to(folder) for path in paths.values())
    base = folder if inside else Path(os.path.commonpath([path.parent for path in paths.values()]))
    files = {role: path.relative_to(base).as_posix() for role, path in paths.items()}
    for name in files.values():
        # In a task file, braces are templates; the pattern of a folder has its one star at the end.
        if not name.isprintable() or "{" in name or "*" in name.rpartition("/")[0]:
            raise InputError(f"{name!a}: a task file cannot name this path; rename it without {{, * and controls")
    keys: dict[str, object] = dict(files) if inside else {"local": files, "dev": "dev", "held_out": "held_out"}
    splits = {role: (base, path) for role, path in files.items()}
    source = FileSource(FileData.model_validate(files), out, splits, "correct the path")
    is_shared = files["dev"] == files["held_out"]
    records = source.records("dev")
    # Such as that another sheet was read.
    notes = f" ({'; '.join(source.notes)})" if source.notes else ""
    if not records:
        raise InputError(f"{files['dev']} has no records{notes}; give data with questions")
    _check_header(files["dev"], records)
    if is_shared and len(records) == 1:
        raise InputError(f"{files['dev']} has one record{notes}; give at least two, one to choose and one to verify")
    where, column = _where(records) if is_shared else ({}, "")
    if where:
        keys["where"] = where
        dev_size, why = None, f"the column {column} says which split a record belongs to"
    else:
        dev_size, more = _dev_size(len(records), is_shared=is_shared)
        why += more
    if not is_shared:
        others = source.records("held_out")
        _check_columns(files, records, others)
        records = [*records, *others]
    is_of_parts = "*" in files["dev"]
    return DraftData(keys, why, records, None if inside else base, dev_size, is_of_parts, notes)


def _check_header(file: str, records: Sequence[Record]) -> None:
    """Refuse a table of which the first row, with the names of the columns, looks like a record."""
    for name in records[0].values:
        texts = [str(record.values.get(name)).strip() for record in records[:100]]
        asks = len(name.split()) > 2 and name.strip().endswith("?")
        if asks and sum(text.endswith("?") for text in texts) > len(texts) / 2:
            raise InputError(
                f"{file}: its first row has the names of the columns, and '{shortened(visible(name), 60)}' looks like "
                "a value; add a row with names, for example question and answer"
            )


def _check_columns(files: Mapping[str, str], dev: Sequence[Record], held_out: Sequence[Record]) -> None:
    """Refuse two files of which one template cannot read both."""
    names = [
        {name: None for record in records[:100] for name in record.values if not name.startswith("_")}
        for records in (dev, held_out)
    ]
    if all(names) and not any(name in names[1] for name in names[0]):
        listed = " and ".join(shortened(visible(", ".join(each)), 80) for each in names)
        raise InputError(
            f"{files['dev']} and {files['held_out']} have no column in common ({listed}); give files of the same form"
        )


def _dev_size(count: int, *, is_shared: bool) -> tuple[int | None, str]:
    """How many of the dev records are used, and the reason."""
    if not is_shared:
        return (_ENOUGH, f"; {_ENOUGH} dev questions are enough to choose") if count > 1_000 else (None, "")
    if count > 2 * _ENOUGH:
        return _ENOUGH, f"; {_ENOUGH} of its questions are dev, the rest is held out"
    return None, "; half of its questions are dev, the rest is held out"


def _of_hub(name: str, out: Path, config: str | None) -> DraftData:
    check_installed("datasets", f"{name} is no file, and a data set of the hub")
    import datasets

    from ensemble.models.hub import commit_on_hub

    commit_on_hub("dataset", name, None)
    revision = None
    with one_line_errors(f"{name} is no file, and on the hub it", "correct the name"):
        try:
            configs = datasets.get_dataset_config_names(name)
        except RuntimeError as error:
            if "scripts" not in str(error):
                raise
            # `datasets` runs no scripts, and the hub has the records of most in another branch.
            revision = "refs/convert/parquet"
            configs = datasets.get_dataset_config_names(name, revision=revision)
        if config not in configs if config else len(configs) > 1:
            what = f"no configuration {config}" if config else "several configurations"
            raise InputError(f"{name} has {what}; give --config with one of {', '.join(configs[:30])}")
        chosen_config = config or (configs[0] if configs else None)
        names = datasets.get_dataset_split_names(name, chosen_config, revision=revision)
    chosen, why = _choose({split: split for split in names})
    given = {"hub": name, "config": chosen_config, "revision": revision, **chosen}
    keys: dict[str, object] = {key: value for key, value in given.items() if value}
    source = HubSource(HubData.model_validate(keys), out, name)
    records = source.records(chosen["dev"])
    is_shared = chosen["dev"] == chosen["held_out"]
    dev_size, more = _dev_size(len(records), is_shared=is_shared)
    if not is_shared:
        records = [*records, *source.records(chosen["held_out"])]
    return DraftData(keys, why + more, records, None, dev_size, is_of_parts=False)


def _splits_of_folder(folder: Path) -> dict[str, Path]:
    """The splits in a folder by name; a path with a star is several files."""
    if is_saved(folder):
        return {name: folder / name for name in saved_splits(folder)} or {folder.name: folder}
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and _is_data(path)]
    if files:
        roles = {_role(stem_of(path)) for path in files} - {None}
        if len(files) <= 2 or roles:
            return {stem_of(path): path for path in files}
        return {folder.name: _pattern(folder, files)}
    folders = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()}
    within = {name: [file for file in sorted(path.iterdir()) if _is_data(file)] for name, path in folders.items()}
    found = {name: _pattern(folders[name], files) for name, files in within.items() if files and _role(name)}
    filled = [name for name, files in within.items() if files]
    if not found and len(filled) == 1:
        return _splits_of_folder(folders[filled[0]])
    if not found:
        raise InputError(f"{folder}: no data files in it, and no folders such as dev and test with data files")
    return found


def _pattern(folder: Path, files: Sequence[Path]) -> Path:
    endings = {path.name.removeprefix(stem_of(path)) for path in files}
    if len(endings) > 1:
        raise InputError(f"{folder}: it has files of several kinds ({', '.join(sorted(endings))}); give the files")
    return files[0] if len(files) == 1 else folder / f"*{endings.pop()}"


def holds_data(path: Path) -> bool:
    """Whether a path is a data file, or a folder with some."""
    try:
        return bool(_splits_of_folder(path)) if path.is_dir() else _is_data(path)
    except InputError:
        return False


def _is_data(path: Path) -> bool:
    return data_suffix(path) in _DATA


def _role(name: str) -> str | None:
    """What the name of a file or split says that it is; the first word counts (``test_NQ-open.dev`` is a test file)."""
    words = re.findall(r"[a-z]+", name.lower().replace("held_out", "heldout").replace("held-out", "heldout"))
    return next((word for word in words if word in (*_DEV, *_HELD_OUT)), None)


def _choose(splits: Mapping[str, T]) -> tuple[dict[str, T], str]:
    """The splits that serve as dev and held_out, and why."""
    if len(splits) == 1:
        (only,) = splits.values()
        return {"dev": only, "held_out": only}, "there is one split only"
    by_role: dict[str, list[str]] = {}
    for name in splits:
        by_role.setdefault(_role(name) or "", []).append(name)
    # At most two of a role: with train and validation, the second one can become held out below.
    held = [name for role in _HELD_OUT for name in by_role.get(role, [])]
    dev = [name for role in _DEV for name in by_role.get(role, [])[:2]]
    if len(held) > 1 or (dev and len(by_role[_role(dev[0]) or ""]) > 1):
        names = ", ".join(held if len(held) > 1 else by_role[_role(dev[0]) or ""])
        raise InputError(f"several may be the same split: {names}; give the two files, dev first")
    if not held and len(dev) > 1:
        # Without test data the validation data is what models were not trained on.
        held, dev = dev[:1], dev[1:]
    if held and dev:
        others = [name for name in splits if name not in (held[0], dev[0])]
        unused = f"; not used: {', '.join(others)}" if others else ""
        why = f"{dev[0]} chooses and {held[0]} verifies, by their names{unused}"
        return {"dev": splits[dev[0]], "held_out": splits[held[0]]}, why
    if len(splits) == 2:
        (first, one), (second, other) = splits.items()
        # One of the names may be clear: questions.csv and test.csv.
        if second in dev or first in held:
            first, one, second, other = second, other, first, one
        why = f"{first} chooses and {second} verifies, by their order; exchange them if it is the other way"
        return {"dev": one, "held_out": other}, why
    raise InputError(f"it is unclear which of {', '.join(list(splits)[:20])} are dev and held out; give the two files")


def _where(records: Sequence[Record]) -> tuple[dict[str, str], str]:
    """The conditions of dev and held_out if a column names the split of each record, and the column."""
    for column in [name for name in (records[0].values if records else ()) if name.lower() in _SPLIT_COLUMNS]:
        # In the order of the records: that of a set changes from run to run.
        values = dict.fromkeys(str(record.values.get(column)) for record in records)
        held = [value for role in _HELD_OUT for value in values if _role(value) == role]
        dev = [value for role in _DEV for value in values if _role(value) == role]
        if not held and len(dev) > 1:
            held, dev = dev[:1], dev[1:]
        if held and dev and all(re.fullmatch(r"[\w -]+", value) for value in (dev[0], held[0])):
            conditions = {"dev": dev[0], "held_out": held[0]}
            return {role: f"{{{{{column} == '{value}'}}}}" for role, value in conditions.items()}, column
    return {}, ""
