"""The `data` of a task file: which files, or which data set of the hub, and which of their splits is which.

    data: {dev: dev.jsonl, held_out: test.jsonl}            # files, relative to the task file
    data:                                                   # a data set of the hub ...
      hub: openai/gsm8k
      config: main
      dev: train
      held_out: test
      local: {train: gsm8k/train.jsonl, test: gsm8k/test.jsonl}   # ... and the same data below --data DIR
      where: {train: "{{level < 3}}"}                       # records of a split that belong to it; all where left out

Not covered: tables, archives, and splits that are joined from several data sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from advisor.tasks.record import Record
from advisor.tasks.templates import Template
from advisor.tasks.yamlfile import Keys
from ensemble.errors import InputError

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
        where: By split, the condition on a record that belongs to it; every record where there is none.
    """

    hub: str | None
    config: str | None
    revision: str | None
    fields: Mapping[str, Template]
    roles: Mapping[str, str]
    files: Mapping[str, Files]
    local: Mapping[str, Files]
    where: Mapping[str, Template]

    def belonging(self, split: str, records: list[Record]) -> list[Record]:
        """Those of the records that belong to the split.

        Raises:
            InputError: The split's condition cannot be evaluated, or is neither true nor false.
        """
        condition = self.where.get(split)
        if condition is None:
            return records
        return [record for record in records if _holds(condition, record)]


def read_data_spec(keys: Keys, variant: str) -> DataSpec:
    """Check the mapping under ``data``.

    Args:
        keys: The mapping.
        variant: Stands for ``{{variant}}`` in every text of it, but not in ``fields``.

    Raises:
        InputError: A key is missing, unknown or of the wrong type.
    """
    hub, local = keys.text("hub"), _files(keys.mapping("local"), (), variant)
    where = _templates(keys.mapping("where"))
    if hub is None and not local:
        stray = [key for key in _HUB_KEYS if key in keys.values]
        if stray:
            raise keys.error(stray[0], "goes with `hub`; add it, or leave this out")
        for role in ("dev", "held_out"):
            if role not in keys.values:
                raise keys.error(role, "is missing; give its file, or `hub` and its split there")
        files = _files(keys, ("local", "where"), variant)
        return DataSpec(None, None, None, {}, {split: split for split in files}, files, {}, where)
    keys.check(("dev", "held_out"), ("hub", *_HUB_KEYS, "shots", "local", "where"))
    return DataSpec(
        hub=hub,
        config=_filled(keys, "config", variant),
        revision=keys.text("revision"),
        fields=_templates(keys.mapping("fields")),
        roles={role: split for role in ROLES if (split := _filled(keys, role, variant)) is not None},
        files={},
        local=local,
        where=where,
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


def _templates(keys: Keys) -> dict[str, Template]:
    return {name: Template(keys.text(name) or "", file=keys.file, key=f"{keys.under}{name}") for name in keys.values}


def _holds(condition: Template, record: Record) -> bool:
    value = condition.value(record)
    if not isinstance(value, bool):
        raise InputError(
            f"{record.place}: its condition under where gives {value!r}; make it one that is true or false"
        )
    return value


def _filled(keys: Keys, key: str, variant: str) -> str | None:
    source = keys.text(key)
    if source is None or "{" not in source:
        return source
    record = Record({"variant": variant}, "the variant in the task's name")
    return Template(source, file=keys.file, key=f"{keys.under}{key}").text(record)
