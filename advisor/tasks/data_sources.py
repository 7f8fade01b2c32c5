"""Where a task's records come from: files beside the task file, files below --data, or a data set of the hub.

Not covered: archives, splits that are joined from several data sets, data sets that are Python scripts
(`datasets` no longer runs them), streaming.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.tasks.data_files import Record, check_files, make_record, read_parallel, read_records
from advisor.tasks.tables.rows import is_saved, saved_files, stem_of
from advisor.tasks.tables.streams import Notes
from advisor.tasks.templates import Template
from ensemble.common.extras import check_installed
from ensemble.common.files import default_cache_dir, exists, write_text, write_whole
from ensemble.errors import InputError, UniteError

if TYPE_CHECKING:
    from advisor.tasks.schema import FileData, Files, HubData


GIVEN = "fresh"
"""The split that is a file which the user names."""


class DataSource:
    """The splits of a task's data, whose files are relative to a folder each. Subclasses read one split."""

    packages: tuple[str, ...] = ()
    """Distributions that read the records; their versions go into the signature."""

    def __init__(self, spec: HubData | FileData, file: Path, splits: Mapping[str, tuple[Path, Files]]) -> None:
        self._file, self._splits = file, splits
        self._roles = spec.roles
        self._where = _templates("where", spec.where, file)
        self.notes: Notes = []
        """Sentences on what of the data is not read."""
        self.origin: str | None = None
        """The data set of the hub that was read, with its commit."""
        self.given: Path | None = None
        """The file of the split :data:`GIVEN`; no task file can name it."""

    def split_of(self, role: str) -> str:
        """Name of the split that serves as ``dev``, ``held_out`` or ``shots`` (else dev's); others are splits."""
        # First, so that local files may be divided in another way than the splits of the hub.
        if role in self._splits:
            return role
        if role == "shots" and role not in self._roles:
            return self.split_of("dev")
        return self._roles.get(role, role)

    def is_same(self, first: str, second: str) -> bool:
        """Whether two roles have the same data, under one split name or under two."""
        one, other = self.split_of(first), self.split_of(second)
        if one == other:
            return True
        # Conditions divide a file. We assume that two different conditions exclude each other.
        conditions = {self._where[split].source if split in self._where else None for split in (one, other)}
        return len(conditions) == 1 and one in self._splits and self._splits[one] == self._splits.get(other)

    def records(self, split: str) -> list[Record]:
        """All records of a split that meet its condition, in the order of the data."""
        if split == GIVEN and self.given is not None:
            return read_records(self.given, "", self.notes)
        records, condition = self._read(split), self._where.get(split)
        return records if condition is None else [record for record in records if _holds(condition, record)]

    def files(self) -> dict[str, Path]:
        """The local files of all splits that are there, by their paths in the task file."""
        found = {}
        for folder, files in self._splits.values():
            for path in filter(exists, _files_within(_paths(folder, files))):
                found[path.relative_to(folder).as_posix()] = path
        return found

    def _read(self, split: str) -> list[Record]:
        raise NotImplementedError


class FileSource(DataSource):
    """Splits that are local files; `hint` is the way out if one does not exist."""

    def __init__(
        self, spec: HubData | FileData, file: Path, splits: Mapping[str, tuple[Path, Files]], hint: str
    ) -> None:
        super().__init__(spec, file, splits)
        self._hint = hint

    def _read(self, split: str) -> list[Record]:
        if split not in self._splits:
            raise InputError(
                f"{self._file}: there is no split '{split}'; choose among {', '.join(sorted(self._splits))}"
            )
        folder, files = self._splits[split]
        paths = _paths(folder, files)
        if not isinstance(files, str):
            check_files(paths, folder, self._hint)
            return read_parallel(dict(zip(files, paths, strict=True)))
        if not paths:
            raise InputError(f"{folder / files} matches no file; {self._hint}")
        # All before the first is read, so that a refusal comes at once.
        check_files(_files_within(paths), folder, self._hint)
        return [
            record for path in paths for record in read_records(path, stem_of(path) if "*" in files else "", self.notes)
        ]


class HubSource(DataSource):
    """The splits of a data set of the hub."""

    packages: tuple[str, ...] = ("datasets",)

    def __init__(self, spec: HubData, file: Path, hub: str) -> None:
        super().__init__(spec, file, {})
        check_installed("datasets", f"{file}: data of the hub ({hub})")
        self._spec, self._hub = spec, hub
        self._fields = _templates("fields", spec.fields, file)
        self._way_out = "give --data DIR to read local files instead" if spec.local else "correct the task file"

    def _read(self, split: str) -> list[Record]:
        from ensemble.models.hub import commit_on_hub

        self._check_id()
        commit = commit_on_hub("dataset", self._hub, self._spec.revision)
        if self._spec.config != "*":
            return self._load(self._spec.config, split, "", commit)
        return [record for name in self._configurations(commit) for record in self._load(name, split, name, commit)]

    def _configurations(self, commit: str | None) -> list[str]:
        """The names of all configurations; those of a commit are kept, because `datasets` asks the hub for them."""
        import datasets

        kept = default_cache_dir() / "configurations" / f"{self._hub.replace('/', '--')}@{commit}.json"
        if commit is not None and kept.is_file():
            with suppress(OSError, ValueError):
                return [str(name) for name in json.loads(kept.read_text(encoding="utf-8"))]
        with one_line_errors(f"{self._file}: {self._hub}", self._way_out):
            names: list[str] = datasets.get_dataset_config_names(self._hub, revision=commit)
        if commit is not None:
            with suppress(OSError):
                write_text(kept, json.dumps(names))
        return names

    def _check_id(self) -> None:
        """Check that `datasets` takes the id for a data set of the hub: it prefers folders and its own loaders."""
        from datasets import packaged_modules

        # `json` would read the JSON files of the working folder, `pandas` its pickles.
        if self._hub in packaged_modules._PACKAGED_DATASETS_MODULES:
            raise InputError(
                f"{self._file}: data.hub: {self._hub} is not a data set of the hub; give its id as ORG/NAME"
            )
        with suppress(OSError):  # a name that no folder can have
            if Path(self._hub).is_dir():
                raise InputError(
                    f"{self._file}: data.hub: {self._hub} is a folder here; run the command in another folder, or "
                    "name the files of this one under dev and held_out"
                )

    def _load(self, config: str | None, split: str, part: str, commit: str | None) -> list[Record]:
        import datasets

        datasets.disable_progress_bars()  # those of tables that are made; downloads keep theirs
        with one_line_errors(f"{self._file}: {self._hub}", self._way_out):
            rows = self._rows_of_hub(config, split, commit)
        return [
            self._with_fields(
                make_record(row, f"{self._hub} {split} (record {index + 1})", stem=config or "", part=part, index=index)
            )
            for index, row in enumerate(rows)
        ]

    def _rows_of_hub(self, config: str | None, split: str, commit: str | None) -> list[Any]:
        """The rows of a split of the hub; those of a commit are kept, so that the hub is asked for them once."""
        import datasets

        key = hashlib.sha256(json.dumps([self._hub, commit, config, split]).encode()).hexdigest()
        kept = default_cache_dir() / "data" / key
        if commit is not None and is_saved(kept):
            self.origin = f"{self._hub}@{commit}"
            return [*datasets.load_from_disk(str(kept))]
        revision = commit or self._spec.revision
        builder = datasets.load_dataset_builder(self._hub, config, revision=revision)
        # `datasets` takes the newest download where the hub does not answer, whatever its commit is.
        if revision not in (None, builder.hash):
            raise InputError(
                f"{self._file}: the hub does not give {self._hub} at {self._spec.revision or commit} now, and "
                f"only its commit {builder.hash} is downloaded; try again later, or give this commit as data.revision"
            )
        self.origin = f"{self._hub}@{builder.hash}"
        if (files := builder.config.data_files) is not None and split in files:
            # The other splits of a configuration can be large.
            builder.config.data_files = type(files)({split: files[split]})
        with tempfile.TemporaryDirectory() as folder:
            builder.download_and_prepare(f"{folder}/all", verification_mode="no_checks")
            rows = builder.as_dataset(split)
            if commit is not None:
                with suppress(OSError):  # a cache that cannot be written costs the next run a download
                    write_whole(kept, lambda fresh: rows.save_to_disk(str(fresh)))
            return [*rows]

    def _with_fields(self, plain: Record) -> Record:
        # All templates read the plain record: a new field must not depend on the order of the others.
        return plain.with_fields(**{name: template.value(plain) for name, template in self._fields.items()})


@contextmanager
def one_line_errors(what: str, way_out: str) -> Iterator[None]:
    """Turn every error of a library into one line, and keep the hub's own warnings about it off the terminal."""
    # The hub's client warns of the same problem that the error below reports.
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    except UniteError:
        raise
    # Network, hub, cache, formats, code of a task: `datasets` and lm-eval have no common base of exceptions.
    except Exception as error:
        from ensemble.models.hub import may_pass  # here: the child process that renders templates needs no hub

        # `datasets` names the reason only in the error that is the cause of the one it raises.
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        parts = [" ".join(str(part).split()).rstrip(".") or type(part).__name__ for part in (error, root)]
        message = ": ".join(dict.fromkeys(parts))
        # An unknown data set, configuration or split is no fault of the network.
        if "is a gated dataset" in message:
            way_out = "accept its terms on its page, and log in (hf auth login)"
        elif may_pass(error):
            request: Any = getattr(error, "request", None)
            message = f"{request.url.path.rpartition('/')[2]}: {message}" if request else message
            way_out = f"try again later, or {way_out}"
        elif type(error).__name__ not in ("DatasetNotFoundError", "ValueError", "RuntimeError"):
            way_out = f"check the network and the name, or {way_out}"
        raise InputError(f"{what} cannot be loaded: {message}; {way_out}") from error
    finally:
        logger.setLevel(level)


def open_source(spec: HubData | FileData, file: Path, data_dir: Path | None) -> DataSource:
    """The task's own files, in ``data_dir`` or else beside the task file; else ``data.local`` below it, or the hub."""
    from advisor.tasks.schema import FileData

    if data_dir is not None and not data_dir.is_dir():
        first = _first_path(spec.files if isinstance(spec, FileData) else spec.local)
        raise InputError(f"{data_dir} is not a folder; give --data the folder that holds {first}")
    if isinstance(spec, FileData):
        beside = {split: (file.parent, files) for split, files in spec.files.items()}
        if data_dir is None:
            return FileSource(spec, file, beside, f"correct the path in {file}")
        given = {
            split: (data_dir, files)
            for split, files in spec.files.items()
            if (paths := _paths(data_dir, files)) and all(map(exists, paths))
        }
        if not given:
            names = ", ".join(dict.fromkeys(path for files in spec.files.values() for path in _names(files)))
            raise InputError(f"--data {data_dir}: this folder has none of the files of {file} ({names}); add them")
        source = FileSource(spec, file, {**beside, **given}, "add it to the folder of --data, or leave out --data")
        if others := [split for split in beside if split not in given]:
            source.notes.append(f"{', '.join(others)}: the data is beside {file}, because {data_dir} has no such file")
        return source
    if data_dir is not None:
        if not spec.local:
            raise InputError(f"{file}: data.local is missing, so --data has no effect; add it, or leave out --data")
        hint = "give --data the folder that holds the task's files" + (
            ", or leave it out to use the hub" if spec.hub else ""
        )
        return FileSource(spec, file, {split: (data_dir, files) for split, files in spec.local.items()}, hint)
    if spec.hub is None:
        raise InputError(
            f"{file}: this data is not on the hub; give --data the folder that holds {_first_path(spec.local)}"
        )
    return HubSource(spec, file, spec.hub)


def _templates(under: str, sources: Mapping[str, str], file: Path) -> dict[str, Template]:
    return {name: Template(source, file=str(file), key=f"data.{under}.{name}") for name, source in sources.items()}


def _first_path(splits: Mapping[str, Files]) -> str:
    return next((path for files in splits.values() for path in _names(files)), "the data")


def _names(files: Files) -> Sequence[str]:
    """The paths of a split, as the task file has them."""
    return [files] if isinstance(files, str) else [*files.values()]


def _paths(folder: Path, files: Files) -> list[Path]:
    """The files of a split; those of a pattern sorted, since the order of a folder's files differs between systems."""
    if isinstance(files, str) and "*" in files:
        return sorted(folder.glob(files))
    return [folder / path for path in _names(files)]


def _files_within(paths: Iterable[Path]) -> list[Path]:
    """The files of a split: of a folder that is a saved data set those that its state names."""
    return [file for path in paths for file in (saved_files(path) if is_saved(path) else [path])]


def _holds(condition: Template, record: Record) -> bool:
    value = condition.value(record)
    if not isinstance(value, bool):
        raise InputError(f"{record.place}: its condition under where gives {str(value)[:60]!r}; make it true or false")
    return value
