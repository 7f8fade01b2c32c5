"""Records from a data set of the hub, or from a folder of files that `datasets` can read, through `datasets`.

    data: {hub: openai/gsm8k, config: main, dev: train, held_out: test}
    data: {hub: ./exported, dev: train, held_out: test}       # a folder relative to the task file

Not covered: data sets that are Python scripts (`datasets` runs none any more), streaming.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from advisor.tasks.dataspec import DataSpec
from advisor.tasks.record import Record
from ensemble.errors import InputError
from ensemble.models.hub import reach_data


class HubSource:
    """The splits of one data set.

    Args:
        spec: The task's ``data``, with ``hub``.
        file: The task file, for messages and as the place that a relative folder starts from.
    """

    packages: tuple[str, ...] = ("datasets",)

    def __init__(self, spec: DataSpec, file: Path) -> None:
        self._spec, self._file = spec, file
        hub = spec.hub or ""
        # An id never begins with a dot or a slash, so a folder that does is one without doubt.
        self._hub = str((file.parent / hub).resolve()) if hub.startswith((".", "/")) else hub

    def split_of(self, role: str) -> str:
        """The data set's split that the task file names for a role; shots come from that of dev where it names none."""
        role = "dev" if role == "shots" and role not in self._spec.roles else role
        return self._spec.roles.get(role, role)

    def is_same(self, first: str, second: str) -> bool:
        """Whether two roles are served by one split."""
        return self.split_of(first) == self.split_of(second)

    def records(self, split: str) -> list[Record]:
        """Load the split, of all configurations where the task file says ``*``, without what does not belong to it."""
        return self._spec.belonging(split, self._read(split))

    def _read(self, split: str) -> list[Record]:
        import datasets

        if not Path(self._hub).is_dir():
            reach_data(self._hub, self._spec.revision)
        if self._spec.config != "*":
            return self._load(self._spec.config, split, "")
        with self._explained():
            names = datasets.get_dataset_config_names(self._hub, revision=self._spec.revision)
        return [record for name in names for record in self._load(name, split, name)]

    def _load(self, config: str | None, split: str, part: str) -> list[Record]:
        import datasets

        with self._explained():
            rows = datasets.load_dataset(self._hub, config, split=split, revision=self._spec.revision)
            values = [cast(Mapping[str, object], row) for row in rows]
        return [
            self._record(row, f"{self._hub} {split} (record {index + 1})", config or "", part, index)
            for index, row in enumerate(values)
        ]

    def _record(self, row: Mapping[str, object], place: str, config: str, part: str, index: int) -> Record:
        plain = Record({"_part": config, **row}, place, part, index)
        added = {name: template.value(plain) for name, template in self._spec.fields.items()}
        return plain.with_fields(**added)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn whatever goes wrong into one line, and keep the hub's own warnings about it off the terminal."""
        logger = logging.getLogger("huggingface_hub")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        # Network, hub, cache, formats: datasets and the libraries below it have no common base of exceptions.
        except Exception as error:
            message = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            way_out = "give --data DIR to read local files instead" if self._spec.local else "correct the task file"
            raise InputError(
                f"{self._file}: {self._hub} cannot be loaded: {message}; check the network and the name, or {way_out}"
            ) from error
        finally:
            logger.setLevel(level)
