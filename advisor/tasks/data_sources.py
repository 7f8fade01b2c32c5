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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from advisor.tasks.data_files import LARGEST, Record, check_files, make_record, read_parallel, read_records, read_text
from advisor.tasks.tables.rows import is_saved, saved_files, saved_splits, stem_of
from advisor.tasks.tables.streams import Notes
from advisor.tasks.templates import FAILURES, Template
from ensemble.common.files import default_cache_dir, exists, write_text, write_whole
from ensemble.errors import InputError
from ensemble.models.hub import may_pass

# The file of a split, or several parallel text files, one for each field.
Files: TypeAlias = str | Mapping[str, str]
_LARGEST_CARD = 2**20  # bytes; the cards of data sets with hundreds of configurations have some 100 kB


@dataclass(frozen=True, slots=True)
class DataSpec:
    """The ``data`` of a task file; :class:`advisor.tasks.schema.HubData` describes the keys."""

    hub: str | None = None  # id of a data set on the hub, or a folder; None if the task has only files
    config: str | None = None  # the data set's configuration; ``*`` means all of them
    revision: str | None = None
    fields: Mapping[str, Template] = field(default_factory=dict)
    # The split of the data that serves as dev, as held_out and as source of the shots, where it has another name.
    roles: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Files] = field(default_factory=dict)  # files beside the task file, by split
    local: Mapping[str, Files] = field(default_factory=dict)  # files below the user's data folder, by split or by role
    where: Mapping[str, Template] = field(default_factory=dict)


class DataSource:
    """The splits of a task's data, whose files are relative to a folder each. Subclasses read one split."""

    packages: tuple[str, ...] = ()
    """Distributions that read the records; their versions go into the signature."""

    def __init__(self, spec: DataSpec, file: Path, splits: Mapping[str, tuple[Path, Files]]) -> None:
        self._spec, self._file, self._splits = spec, file, splits
        self.notes: Notes = []
        """Sentences on what of the data is not read."""
        self.origin: str | None = None
        """The data set of the hub that was read, with its commit."""

    def split_of(self, role: str) -> str:
        """Name of the split that serves as ``dev``, ``held_out`` or ``shots`` (else dev's); others are splits."""
        # First, so that local files may be divided in another way than the splits of the hub.
        if role in self._splits:
            return role
        if role == "shots" and role not in self._spec.roles:
            return self.split_of("dev")
        return self._spec.roles.get(role, role)

    def is_same(self, first: str, second: str) -> bool:
        """Whether two roles have the same data, under one split name or under two."""
        one, other = self.split_of(first), self.split_of(second)
        if one == other:
            return True
        # Conditions divide a file. We assume that two different conditions exclude each other.
        if self._condition(one) != self._condition(other):
            return False
        return one in self._splits and self._splits[one] == self._splits.get(other)

    def records(self, split: str) -> list[Record]:
        """All records of a split that meet its condition, in the order of the data."""
        records, condition = self._read(split), self._spec.where.get(split)
        return records if condition is None else [record for record in records if _holds(condition, record)]

    def _condition(self, split: str) -> str | None:
        return None if split not in self._spec.where else self._spec.where[split].source

    def _read(self, split: str) -> list[Record]:
        raise NotImplementedError


class FileSource(DataSource):
    """Splits that are local files; `hint` is the way out if one does not exist."""

    def __init__(self, spec: DataSpec, file: Path, splits: Mapping[str, tuple[Path, Files]], hint: str) -> None:
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
            check_files(paths, folder, self._hint, LARGEST)
            return read_parallel(dict(zip(files, paths, strict=True)))
        if not paths:
            raise InputError(f"{folder / files} matches no file; {self._hint}")
        # All before the first is read, so that a refusal comes at once.
        check_files(_files_within(paths), folder, self._hint, LARGEST)
        return [
            record for path in paths for record in read_records(path, stem_of(path) if "*" in files else "", self.notes)
        ]


class HubSource(DataSource):
    """The splits of a data set of the hub, or of a folder relative to the task file that `datasets` reads."""

    packages: tuple[str, ...] = ("datasets",)

    def __init__(self, spec: DataSpec, file: Path, hub: str) -> None:
        super().__init__(spec, file, {})
        # An id never begins with a dot, so a name that does is always a folder.
        self._folder = (file.parent / hub).resolve() if hub.startswith(".") else None
        self._hub = hub if self._folder is None else str(self._folder)
        self._way_out = "give --data DIR to read local files instead" if spec.local else "correct the task file"

    def _read(self, split: str) -> list[Record]:
        from ensemble.models.hub import commit_on_hub

        commit = None
        with self._offline():
            if self._folder is None:
                self._check_id()
                commit = commit_on_hub("dataset", self._hub, self._spec.revision)
            elif is_saved(self._folder):
                return self._load_saved(self._folder, split)
            elif self._folder.is_dir():
                _check_folder(self._folder, self._file)
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
                    f"{self._file}: data.hub: {self._hub} is a folder here; write ./{self._hub} for a folder beside "
                    "the task file, or run the command in another folder"
                )

    @contextmanager
    def _offline(self) -> Iterator[None]:
        """Let the libraries of the hub make no request for a local folder, whatever its files name."""
        import datasets
        from huggingface_hub import constants

        before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
        if self._folder is not None:
            datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            if self._folder is not None:  # else `commit_on_hub` may have found that the hub does not answer
                datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before

    def _load(self, config: str | None, split: str, part: str, commit: str | None) -> list[Record]:
        import datasets

        datasets.disable_progress_bars()  # those of tables that are made; downloads keep theirs
        with one_line_errors(f"{self._file}: {self._hub}", self._way_out):
            if self._folder is not None:
                rows = [*datasets.load_dataset(self._hub, config, split=split)]
            else:
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

    def _load_saved(self, folder: Path, split: str) -> list[Record]:
        """A split of a folder that `datasets.save_to_disk` wrote, which `load_dataset` does not read."""
        splits = saved_splits(folder)
        if split not in splits:
            raise InputError(
                f"{self._file}: {folder} has no split '{split}'; choose among {', '.join(splits) or 'its files'}"
            )
        check_files(_files_within([folder / split]), folder, "save the data set again", LARGEST)
        return [self._with_fields(record) for record in read_records(folder / split, "", self.notes)]

    def _with_fields(self, plain: Record) -> Record:
        # All templates read the plain record: a new field must not depend on the order of the others.
        return plain.with_fields(**{name: template.value(plain) for name, template in self._spec.fields.items()})


@contextmanager
def one_line_errors(what: str, way_out: str) -> Iterator[None]:
    """Turn every error into one line, and keep the hub's own warnings about it off the terminal."""
    # The hub's client warns of the same problem that the error below reports.
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    except InputError:
        raise
    # Network, hub, cache, formats: datasets and the libraries below it have no common base of exceptions.
    except Exception as error:
        message = " ".join(str(error).split()).rstrip(".") or type(error).__name__
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


def open_source(spec: DataSpec, file: Path, data_dir: Path | None) -> DataSource:
    """The task's own files, in ``data_dir`` or else beside the task file; else ``data.local`` below it, or the hub."""
    if data_dir is not None and not data_dir.is_dir():
        first = _first_path(spec.files or spec.local)
        raise InputError(f"{data_dir} is not a folder; give --data the folder that holds {first}")
    if spec.files:
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


def _check_folder(folder: Path, file: Path) -> None:
    """Check that a local folder, which `datasets` reads, names no data elsewhere, neither by links nor in its card."""
    # Folders too: the library looks into those behind a link.
    inner = sorted(folder.rglob("*"))
    check_files((path for path in inner if not path.is_dir() or path.is_symlink()), folder, f"correct {file}")
    for name in ("README.md", ".huggingface.yaml"):
        card = folder / name
        if not card.exists():
            continue
        text = read_text(card, _LARGEST_CARD, "remove it")
        if card.suffix == ".md":
            from huggingface_hub.repocard import REGEX_YAML_BLOCK

            # The same expression as the library's, so that both read the same block.
            block = REGEX_YAML_BLOCK.search(text)
            text = block[2] if block else ""
        content = parse_yaml(text, str(card))
        configs = content.get("configs") if isinstance(content, dict) else None
        for path in _texts_within(configs):
            # The library would make a request for an address, and read any file of this machine.
            if "://" in path or path.startswith(("/", "~")) or ".." in path.split("/"):
                raise InputError(f"{card} names data outside of its folder: {path}; remove it, or copy the data")


def _texts_within(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts_within(inner)


def _holds(condition: Template, record: Record) -> bool:
    value = condition.value(record)
    if not isinstance(value, bool):
        raise InputError(f"{record.place}: its condition under where gives {str(value)[:60]!r}; make it true or false")
    return value


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses two things that do harm in a shared file: aliases, and a key twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # By aliases a short file can describe an endless one.
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        # YAML would silently take the last of two equal keys.
        if len(mapping) < len(node.value):
            names = [self.construct_object(key) for key, _ in node.value]
            twice = next(name for name in names if names.count(name) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice} is given twice", node.start_mark)
        return mapping


def parse_yaml(text: str, place: str) -> object:
    """The value of a YAML text; `place` is the file, for messages, which name the line."""
    try:
        # The class derives from SafeLoader, so YAML tags cannot create Python objects.
        return yaml.load(text, Loader=_Loader)
    # Not only YAMLError: the library's own tags raise what their conversion raises. `!!int ""` is an IndexError,
    # `!!bool x` a KeyError, `!!timestamp x` an AttributeError.
    except (yaml.YAMLError, *FAILURES) as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or error).partition("\n")[0]
        where = f"{place}:{mark.line + 1}" if mark is not None else place
        hint = "quote text that begins with {{" if "unhashable" in problem else "correct the line"
        raise InputError(f"{where}: not valid YAML: {problem}; {hint}") from error
