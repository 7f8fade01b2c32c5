"""The `data` of a task file: which files, or which data set of the hub, and which of their splits is which.

    data: {dev: dev.jsonl, held_out: test.jsonl}            # files, relative to the task file
    data:                                                   # a data set of the hub ...
      hub: openai/gsm8k
      config: main
      dev: train
      held_out: test
      local: {train: gsm8k/train.jsonl, test: gsm8k/test.jsonl}   # ... and the same data below --data DIR

Not covered: tables, archives, and splits that are joined from several data sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from advisor.tasks.record import Record
from advisor.tasks.templates import Template
from advisor.tasks.yamlfile import Keys

ROLES = ("dev", "held_out", "shots")
_HUB_KEYS = ("config", "revision", "fields")

# A split's file, or several text files that run in parallel, one field each.
Files: TypeAlias = str | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Where a task's records come from.

    Attributes:
        hub: Id of a data set on the hub, or a folder; None where there are only files.
        config: The data set's configuration; ``*`` stands for all that it has.
        revision: Of the data set.
        fields: Templates of fields that are added to each record from the hub, in place of its own of that name.
        roles: The split of the data that serves as dev, as held_out and as source of the shots.
        files: Files beside the task file, by split; empty for a data set of the hub.
        local: Files below the user's data folder, by split or by role.
    """

    hub: str | None
    config: str | None
    revision: str | None
    fields: Mapping[str, Template]
    roles: Mapping[str, str]
    files: Mapping[str, Files]
    local: Mapping[str, Files]


def read_data_spec(keys: Keys, variant: str) -> DataSpec:
    """Check the mapping under ``data``.

    Args:
        keys: The mapping.
        variant: Stands for ``{{variant}}`` in every text of it, but not in ``fields``.

    Raises:
        InputError: A key is missing, unknown or of the wrong type.
    """
    hub, local = keys.text("hub"), _files(keys.mapping("local"), (), variant)
    if hub is None and not local:
        stray = [key for key in _HUB_KEYS if key in keys.values]
        if stray:
            raise keys.error(stray[0], "goes with `hub`; add it, or leave this out")
        for role in ("dev", "held_out"):
            if role not in keys.values:
                raise keys.error(role, "is missing; give its file, or `hub` and its split there")
        files = _files(keys, ("local",), variant)
        return DataSpec(None, None, None, {}, {split: split for split in files}, files, {})
    keys.check(("dev", "held_out"), ("hub", *_HUB_KEYS, "shots", "local"))
    fields = keys.mapping("fields")
    return DataSpec(
        hub=hub,
        config=_filled(keys, "config", variant),
        revision=keys.text("revision"),
        fields={
            name: Template(fields.text(name) or "", file=keys.file, key=f"{fields.under}{name}")
            for name in fields.values
        },
        roles={role: split for role in ROLES if (split := _filled(keys, role, variant)) is not None},
        files={},
        local=local,
    )


def _files(keys: Keys, besides: tuple[str, ...], variant: str) -> dict[str, Files]:
    found: dict[str, Files] = {}
    for split, value in keys.values.items():
        if split in besides:
            continue
        if isinstance(value, dict):
            columns = keys.mapping(split)
            found[split] = {field: _filled(columns, field, variant) or "" for field in columns.values}
        else:
            found[split] = _filled(keys, split, variant) or ""
    return found


def _filled(keys: Keys, key: str, variant: str) -> str | None:
    source = keys.text(key)
    if source is None or "{" not in source:
        return source
    record = Record({"variant": variant}, "the variant in the task's name")
    return Template(source, file=keys.file, key=f"{keys.under}{key}").text(record)
