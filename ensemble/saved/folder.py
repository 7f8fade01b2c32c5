"""Saved ensembles: a folder, or a model on the hub, with ``ensemble.json`` and a model card."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble.common.files import exists
from ensemble.errors import InputError, UniteError
from ensemble.methods import make_options
from ensemble.models.choices import GGUF_SUFFIX
from ensemble.models.hub import commit_of, file_on_hub, push_files
from ensemble.models.model_files import check_unchanged, hashes_of
from ensemble.models.spec import EnsembleSpec, ModelSpec
from ensemble.saved.ensemble_json import from_json, to_json
from ensemble.saved.model_card import MARKER, model_card

if TYPE_CHECKING:
    from ensemble.models.member import Member

FILE = "ensemble.json"
STRATEGY_FILE = "strategy.json"
"""The file in place of ``ensemble.json`` where the models do not decode together: ``advisor export`` writes it."""
CARD = "README.md"
_MAX_BYTES = 2**20
"""The size limit of an ``ensemble.json``; real files have a few kilobytes."""


def is_saved(folder: Path) -> bool:
    """Whether a folder holds a saved ensemble."""
    return (folder / FILE).is_file()


def specs_of(members: Sequence[Member]) -> tuple[ModelSpec, ...]:
    """The specs of loaded members with commits or hashes, under different names; InputError if one has neither."""
    specs = []
    for member in members:
        if member.spec is None:
            raise InputError(
                "it was made from a model in memory, so there is no path or id to save; "
                "save the model to a folder, and load it from there",
                of=member.name,
            )
        specs.append(pinned(member.spec))
    return _distinct_names(specs)


def save(spec: EnsembleSpec, folder: Path, push_to_hub: str | None, *, private: bool) -> str | None:
    """Write an ensemble's spec and a card without evidence, and push both on request; the address on the hub.

    The folder is new or empty, or this function wrote it. An InputError (for other files, or for a local member that is
    to be pushed) leaves it as it is; UniteError if the folder cannot be written, or the hub refuses. Only a new model
    on the hub can become private.
    """
    check_target(folder)
    if push_to_hub is not None:
        check_pushable(spec.members)
    content = {CARD: model_card(spec, push_to_hub or folder.absolute().name), FILE: to_json(spec, folder)}
    write_files(folder, content)
    return None if push_to_hub is None else push_files(folder, (FILE, CARD), push_to_hub, private=private)


def write_files(folder: Path, content: Mapping[str, str]) -> None:
    """Write files (name and text) in one step; a card that was edited stays; UniteError if it is impossible.

    The folder is one that :func:`check_target` accepts.
    """
    if _is_edited(folder / CARD):
        content = {name: text for name, text in content.items() if name != CARD}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Written beside it first, so that a full disk leaves the old folder as it was.
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
            new = Path(temporary, "new")
            new.mkdir()
            for name, text in content.items():
                (new / name).write_text(text, encoding="utf-8", newline="\n")
            if not folder.exists():
                new.rename(folder)
            else:
                for name in content:
                    (new / name).replace(folder / name)
                # Of an earlier export: with both files the folder would be two things.
                for name in {FILE, STRATEGY_FILE} - content.keys():
                    (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UniteError(f"{folder}: cannot be written ({error}); correct that, or give another folder") from error


def check_target(folder: Path) -> None:
    """Raise an InputError if a folder is a file, or has files that saving an ensemble would overwrite."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; give a folder")
    found = [folder / name for name in (FILE, STRATEGY_FILE) if (folder / name).is_file()]
    if not found:
        if other := next(iter(sorted(folder.iterdir())), None):
            raise InputError(
                f"{folder}: is not a saved ensemble, and has {other.name} in it; give a new or empty folder"
            )
        return
    for path in found:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            values = None
        if not isinstance(values, dict) or "schema_version" not in values:
            raise InputError(f"{path}: is not a saved ensemble, so it is not overwritten; give another folder")


def check_pushable(members: Sequence[ModelSpec]) -> None:
    """Raise an InputError if others cannot load a member from the hub: a local one, or one behind a server."""
    for member in members:
        if member.checkpoint.is_remote:
            raise InputError("it is behind a server, which others cannot reach; save without pushing", of=member.name)
        if member.checkpoint.is_local:
            raise InputError(
                f"{member.checkpoint.path_or_id} is a local model, which others cannot load; push it "
                "to the hub first (hf upload) and use its id, or save without pushing",
                of=member.name,
            )


def read(
    source: str | Path,
    *,
    trust_remote_code: bool | Collection[str] = False,
    check_files: bool = True,
    allow_servers: Collection[str] | None = (),
) -> EnsembleSpec:
    """Find and read a saved ensemble: a folder, or an id on the hub (``@revision`` may follow).

    The file cannot give consent to run code (``trust_remote_code``: names or ids, True for all) or to send prompts to
    servers (``allow_servers``: None for a caller who asks for it). ``check_files`` requires the files with which local
    members were saved. InputError if it cannot be used.
    """
    # The options belong to the method, so only the method's module can check them.
    spec, file = _read(source)
    try:
        make_options(spec.method, spec.options)
    # Those of a plug-in may fail in any way at a value of another type.
    except (TypeError, ValueError, InputError) as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{file}: options: {reason}") from error
    check_members(
        spec.members,
        file,
        trust_remote_code=trust_remote_code,
        check_files=check_files,
        allow_servers=allow_servers,
    )
    return spec


def check_members(
    members: Sequence[ModelSpec],
    file: str,
    *,
    trust_remote_code: bool | Collection[str] = False,
    check_files: bool = True,
    allow_servers: Collection[str] | None = (),
) -> None:
    """Check the members of a file as :func:`read` does; InputError without consent, or if one is gone or changed."""
    for member in members:
        checkpoint = member.checkpoint
        trusted = None if trust_remote_code is True else trust_remote_code or ()
        member.check_consent(trusted, allow_servers, f"{file}: its member {member.name}")
        if not checkpoint.is_remote and checkpoint.is_local and check_files:
            if not exists(checkpoint.path_or_id):
                raise InputError(f"{file}: its member {checkpoint.path_or_id} does not exist; correct the path there")
            try:
                check_unchanged(checkpoint, member.files)
            except InputError as error:
                raise InputError(
                    f"{file}: {error}; save the ensemble again, or load it without this check: check_files=False "
                    "(--no-check-files)"
                ) from error


def _read(source: str | Path) -> tuple[EnsembleSpec, str]:
    """The spec in a file, and the file's name for messages."""
    text = str(source)
    path = Path(text).expanduser()
    # What looks like a path is never looked for on the hub: a typing error must not download a model.
    if not (path.exists() or isinstance(source, Path) or text.startswith((".", "/", "~"))):
        name, _, revision = text.partition("@")
        file = f"{text}: {FILE}"
        return from_json(_content(file_on_hub(name, revision or None, FILE), file), file, None), file
    if not path.exists():
        raise InputError(f"{text}: no such folder; give one that holds {FILE}, or a list of models")
    if not is_saved(path):
        if (path / STRATEGY_FILE).is_file():
            raise InputError(f"{text}: its models do not decode together; use it with `advisor run` or `advisor serve`")
        is_model = (path / "config.json").is_file() or path.suffix.lower() == GGUF_SUFFIX
        what = "is a model, not a saved ensemble" if is_model else f"has no {FILE}, so it is not a saved ensemble"
        raise InputError(f"{text}: {what}; give a list of models, the primary first")
    file = str(path / FILE)
    return from_json(_content(path / FILE, file), file, path), file


def _content(path: Path, file: str) -> str:
    try:
        # Before it is read: a file from the hub may be of any size.
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{file}: has {path.stat().st_size:,} bytes; the limit is {_MAX_BYTES:,}")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as UTF-8 text ({error}); save the ensemble again") from error


def pinned(member: ModelSpec) -> ModelSpec:
    """A member with its commit, or its absolute path and hashes; InputError if the hub does not know the commit."""
    checkpoint = member.checkpoint
    if checkpoint.is_remote:
        return member
    if checkpoint.is_local:
        return replace(member, checkpoint=checkpoint.absolute, files=hashes_of(checkpoint))
    return replace(member, checkpoint=replace(checkpoint, revision=commit_of(checkpoint)))


def _distinct_names(members: Sequence[ModelSpec]) -> tuple[ModelSpec, ...]:
    """The same members; a repeated name gets a number."""
    names: set[str] = set()
    renamed = []
    for member in members:
        name, number = member.name, 1
        while name in names:
            number += 1
            name = f"{member.name}-{number}"
        names.add(name)
        renamed.append(replace(member, name=name))
    return tuple(renamed)


def _is_edited(card: Path) -> bool:
    try:
        return MARKER not in card.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
