"""Saved ensembles: a folder, or a model of the hub, with ``ensemble.json`` and a model card."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ensemble.errors import InputError, UniteError
from ensemble.methods import make_options, option_fields
from ensemble.models.fingerprint import check_unchanged, hashes_of
from ensemble.models.gguf import SUFFIX
from ensemble.models.hub import commit_of, file_on_hub, push_files
from ensemble.models.spec import Checkpoint
from ensemble.saved.ensemble_json import COMMIT, Part, Recipe, from_json, to_json
from ensemble.saved.model_card import MARKER

FILE = "ensemble.json"
CARD = "README.md"
_MOST = 2**20
"""Bytes that an ``ensemble.json`` may have: many times what any needs."""


def is_saved(folder: Path) -> bool:
    """Whether a folder holds a saved ensemble."""
    return (folder / FILE).is_file()


def pinned(checkpoint: Checkpoint) -> tuple[Checkpoint, dict[str, str]]:
    """A member's place as it is saved: at a commit, or with the hashes of its files.

    Raises:
        InputError: The hub names no commit of it, or a file cannot be read.
    """
    if checkpoint.is_local:
        return checkpoint.absolute, hashes_of(checkpoint)
    commit = checkpoint.revision or ""
    return replace(checkpoint, revision=commit if COMMIT.fullmatch(commit) else commit_of(checkpoint)), {}


def named(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The same members with names that differ."""
    taken: set[str] = set()
    found = []
    for part in parts:
        name = first = part.name or part.checkpoint.name
        number = 1
        while name in taken:
            number += 1
            name = f"{first}-{number}"
        taken.add(name)
        found.append(replace(part, name=name))
    return tuple(found)


def check_target(folder: Path) -> None:
    """Make sure that an ensemble can be saved in a folder without writing over anything else.

    Raises:
        InputError: It is a file, or has other things in it.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; give a folder")
    if not is_saved(folder):
        if other := next(iter(sorted(folder.iterdir())), None):
            raise InputError(f"{folder}: is no saved ensemble, and has {other.name} in it; give a new or empty folder")
        return
    try:
        values = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or "schema_version" not in values:
        raise InputError(f"{folder / FILE}: is no saved ensemble, so it is not written over; give another folder")


def check_pushable(recipe: Recipe) -> None:
    """Make sure that everybody can load what is pushed.

    Raises:
        InputError: A member is on this machine alone.
    """
    for part in recipe.parts:
        if part.checkpoint.is_local:
            raise InputError(
                f"{part.name}: {part.checkpoint.path_or_id} is a local model, which nobody else can load; push it to "
                "the hub as a model of its own (hf upload) and use its id, or save without pushing"
            )


def write(folder: Path, recipe: Recipe, card: str) -> None:
    """Write a recipe and its card. A card that its owner has made his own is left as it is.

    Raises:
        InputError: See :func:`check_target`.
        UniteError: It cannot be written.
    """
    check_target(folder)
    content = {CARD: card, FILE: to_json(recipe, folder)}
    if _is_own(folder / CARD):
        del content[CARD]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as fresh:
            made = Path(fresh, "made")
            made.mkdir()
            for name, text in content.items():
                (made / name).write_text(text, encoding="utf-8", newline="\n")
            if not folder.exists():
                made.rename(folder)
                return
            for name in content:
                (made / name).replace(folder / name)
    except OSError as error:
        raise UniteError(f"{folder}: cannot be written ({error}); mend that, or give another folder") from error


def _is_own(card: Path) -> bool:
    try:
        return MARKER not in card.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


def push(folder: Path, name: str, *, private: bool) -> str:
    """Upload a saved ensemble; the address of the commit. See :func:`ensemble.models.hub.push_files`."""
    return push_files(folder, (FILE, CARD), name, private=private)


def read(place: str | Path, *, trust_remote_code: bool = False, check_files: bool = True) -> Recipe:
    """Find and read a saved ensemble.

    Args:
        place: A folder, or an id on the hub (``@revision`` may follow).
        trust_remote_code: The user's own consent that members run the code that they came with. What the file says
            gives no consent.
        check_files: Whether local members must be as they were saved.

    Raises:
        InputError: There is none, or it cannot be used; a member wants to run code, or has changed.
    """
    recipe, source = _read(place)
    try:
        _check_options(recipe)
    except InputError as error:
        raise InputError(f"{source}: options: {error}") from error
    for part in recipe.parts:
        checkpoint = part.checkpoint
        if checkpoint.trust_remote_code and not trust_remote_code:
            at = f"@{checkpoint.revision}" if checkpoint.revision else ""
            raise InputError(
                f"{source}: its member {checkpoint.path_or_id}{at} runs code that came with it; read that code, and "
                "then give trust_remote_code=True (--trust-remote-code)"
            )
        if checkpoint.is_local and check_files:
            if not Path(checkpoint.path_or_id).exists():
                raise InputError(
                    f"{source}: its member {checkpoint.path_or_id} is not there; mend its path in that file"
                )
            try:
                check_unchanged(checkpoint, part.files)
            except InputError as error:
                raise InputError(
                    f"{source}: {error}; save the ensemble again, or load it all the same with check_files=False "
                    "(--no-check-files)"
                ) from error
    return recipe


def _read(place: str | Path) -> tuple[Recipe, str]:
    """A recipe as it stands in its file, and that file for messages."""
    text = str(place)
    path = Path(text).expanduser()
    if not (path.exists() or isinstance(place, Path) or text.startswith((".", "/", "~"))):
        name, _, revision = text.partition("@")
        source = f"{text}: {FILE}"
        return from_json(_content(file_on_hub(name, revision or None, FILE), source), source, None), source
    if not path.exists():
        raise InputError(f"{text}: there is no such folder; give one that holds {FILE}, or a list of models")
    if not is_saved(path):
        model = (path / "config.json").is_file() or path.suffix.lower() == SUFFIX
        what = "is a model, not a saved ensemble" if model else f"has no {FILE}, so it is no saved ensemble"
        raise InputError(f"{text}: {what}; give a list of models, the primary first")
    return from_json(_content(path / FILE, str(path / FILE)), str(path / FILE), path), str(path / FILE)


def _content(path: Path, source: str) -> str:
    try:
        if path.stat().st_size > _MOST:
            raise InputError(
                f"{source}: has {path.stat().st_size:,} bytes, and no saved ensemble has more than {_MOST:,}"
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: cannot be read as UTF-8 text ({error}); save the ensemble again") from error


def _check_options(recipe: Recipe) -> None:
    """Make sure that a method's settings are of their types, and in their ranges, before code computes with them."""
    for known in option_fields(recipe.method):
        value, kind = recipe.options.get(known.name), type(known.default)
        # Of JSON: a whole number is a number, and a list what Python may have as a tuple.
        kinds: Any = {float: (int, float), tuple: list, type(None): str}.get(kind, kind)
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool)):
            raise InputError(f"{known.name} {str(value)[:60]!r} is not of its type, {kind.__name__}")
    try:
        make_options(recipe.method, recipe.options)
    except (TypeError, ValueError) as error:  # a list of other things than numbers
        raise InputError(f"{type(error).__name__}: {error}") from error


def quantization_of(part: Part) -> object | None:
    """The quantization configuration of a member.

    Raises:
        InputError: What is saved is none that transformers knows.
    """
    if not isinstance(part.quantization, Mapping):
        return part.quantization
    from transformers.quantizers.auto import AutoQuantizationConfig

    try:
        made: object = AutoQuantizationConfig.from_dict(dict(part.quantization))
    except Exception as error:  # of many libraries: what is no configuration fails in its own way
        raise InputError(f"{part.name}: quantization: {type(error).__name__}: {error}") from error
    return made
