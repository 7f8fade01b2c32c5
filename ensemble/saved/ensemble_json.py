r"""What an ensemble is made of, as plain values and as the JSON of ``ensemble.json``. No weights.

    {
      "schema_version": 1,
      "method": "unite", "k": 10, "weights": [0.5, 0.5], "options": {},
      "generation": {"max_new_tokens": 128, "stop": ["\n"]},
      "members": [
        {"name": "a", "id": "org/a", "revision": "<commit>", "dtype": "bfloat16", "chat_template": "never"},
        {"name": "b", "path": "../models/b", "files": {"model.safetensors": "<SHA-256>"}, "dtype": "float32"}
      ]
    }

Such a file may come from anywhere, so every key of it is checked, and an error names the file and the key.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from ensemble.errors import InputError
from ensemble.methods import DEFAULT, get_method
from ensemble.models.gguf import SUFFIX
from ensemble.models.spec import DTYPES, ChatTemplate, Checkpoint, Reads, Sides, absolute

SCHEMA_VERSION = 1
_KEYS = ("schema_version", "method", "k", "weights", "options", "generation", "members")
_PLACE_KEYS = ("id", "revision", "path", "files", "gguf_file", "trust_remote_code")
_MEMBER_KEYS = ("name", *_PLACE_KEYS, "dtype", "chat_template", "source", "target", "reads", "quantization")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Part:
    """A member: where it is, and how it is loaded.

    Attributes:
        checkpoint: Its place. One of the hub has a commit as its revision.
        name: How it is called; None for the last part of its place.
        dtype: What its weights are held in.
        chat_template: Whether its prompts go through a chat template.
        files: SHA-256 of each file of a local one that decides what it writes.
        quantization: What its quantization configuration says, or the configuration itself.
    """

    checkpoint: Checkpoint
    name: str | None
    dtype: str
    chat_template: ChatTemplate
    files: Mapping[str, str] = field(default_factory=dict)
    quantization: object | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """Members, the primary first, and how they decode together; see :class:`ensemble.Ensemble`.

    Attributes:
        weights: None for equal ones.
        options: The method's own settings.
        max_new_tokens: Where a text is cut off, if nobody says otherwise.
        stop: What a text ends before, if nobody says otherwise.
    """

    parts: tuple[Part, ...]
    method: str = DEFAULT
    k: int = 10
    weights: tuple[float, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()


def to_json(recipe: Recipe, folder: Path) -> str:
    """A recipe as it is written into a folder.

    Raises:
        InputError: An option or a quantization configuration is nothing that JSON has.
    """
    generation = {"max_new_tokens": recipe.max_new_tokens, "stop": list(recipe.stop)}
    said = {key: value for key, value in generation.items() if value}
    content = {
        "schema_version": SCHEMA_VERSION,
        "method": recipe.method,
        "k": recipe.k,
        "weights": None if recipe.weights is None else list(recipe.weights),
        "options": dict(recipe.options),
        **({"generation": said} if said else {}),
        "members": [_member_json(part, folder) for part in recipe.parts],
    }
    try:
        return f"{json.dumps(content, indent=2, allow_nan=False)}\n"
    except (TypeError, ValueError) as error:
        raise InputError(f"the ensemble cannot be written down ({error}); leave that option out") from error


def _member_json(part: Part, folder: Path) -> dict[str, Any]:
    checkpoint, quantization = part.checkpoint, part.quantization
    if checkpoint.is_local:
        place: dict[str, Any] = {"path": _path_from(folder, checkpoint.path_or_id), "files": dict(part.files)}
    else:
        place = {"id": checkpoint.path_or_id, "revision": checkpoint.revision}
    if quantization is not None and not isinstance(quantization, Mapping):
        quantization = cast(Any, quantization).to_dict()
    return {
        "name": part.name or checkpoint.name,
        **place,
        **({} if checkpoint.gguf_file is None else {"gguf_file": checkpoint.gguf_file}),
        **({"trust_remote_code": True} if checkpoint.trust_remote_code else {}),
        "dtype": part.dtype,
        "chat_template": part.chat_template,
        **checkpoint.sides.key(),
        **({} if quantization is None else {"quantization": quantization}),
    }


def _path_from(folder: Path, model: str) -> str:
    """A model's path: relative where it lies in the folder or beside it, so that they can be moved together."""
    path, base = absolute(Path(model)), absolute(folder)
    beside = path.is_relative_to(base.parent) and base.parent != Path(base.anchor)
    return Path(os.path.relpath(path, base)).as_posix() if beside else str(path)


def from_json(text: str, place: str, folder: Path | None) -> Recipe:
    """Read a recipe.

    Args:
        text: The content of the file.
        place: The file, for messages.
        folder: What local paths are relative to; None where there can be none, as on the hub.

    Raises:
        InputError: It is no such file, or a key of it cannot be used; names both.
    """
    try:
        values = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: cannot be read as JSON ({error}); save the ensemble again") from None
    if not isinstance(values, dict) or "schema_version" not in values:
        raise InputError(f"{place}: no saved ensemble, as it has no schema_version; save the ensemble again")
    keys = _Keys(values, place)
    if values["schema_version"] != SCHEMA_VERSION:
        keys.refuse("schema_version", f"this version reads {SCHEMA_VERSION}; use a newer unite-advisor")
    keys.only(_KEYS)
    members = keys.get("members", list)
    if not members or not all(isinstance(member, dict) for member in members):
        keys.refuse("members", "give a list of objects, one for each member, the primary first")
    parts = tuple(_part(_Keys(member, f"{place}: members[{n}]"), folder) for n, member in enumerate(members))
    names = [part.name for part in parts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{place}: members: the name {twice!r} is there twice; names must differ")
    generation = _Keys(keys.get("generation", dict, {}), f"{place}: generation")
    generation.only(("max_new_tokens", "stop"))
    return Recipe(
        parts,
        _method(keys),
        keys.whole("k", 10),
        _weights(keys, len(parts)),
        keys.get("options", dict, {}),
        generation.whole("max_new_tokens", None),
        _stop(generation),
    )


def _part(keys: _Keys, folder: Path | None) -> Part:
    keys.only(_MEMBER_KEYS)
    name = keys.text("name")
    if name is None or not name.strip() or not name.isprintable():
        keys.refuse("name", "give a printable text that is not blank")
    reads = cast("Reads | None", keys.one_of("reads", ("source", "prompt")))
    sides = Sides(keys.text("source"), keys.text("target"), reads)
    return Part(
        _checkpoint(keys, folder, sides),
        name,
        keys.one_of("dtype", DTYPES) or "auto",
        cast(ChatTemplate, keys.one_of("chat_template", ("auto", "always", "never")) or "auto"),
        _files(keys),
        keys.get("quantization", dict, None),
    )


def _checkpoint(keys: _Keys, folder: Path | None, sides: Sides) -> Checkpoint:
    hub_id, path, revision = keys.text("id"), keys.text("path"), keys.text("revision")
    trust, file = keys.get("trust_remote_code", bool, False), keys.text("gguf_file")
    if (hub_id is None) == (path is None):
        keys.refuse("id", "give either an id of the hub or a path")
    if file is not None and (not file.lower().endswith(SUFFIX) or ".." in file or file.startswith("/")):
        keys.refuse("gguf_file", f"give the name of a file of the model that ends in {SUFFIX}")
    if path is not None:
        if folder is None:
            keys.refuse("path", "an ensemble of the hub can have no local member; its owner has to push that model")
        if revision is not None:
            keys.refuse("revision", "a local member has none; leave it out")
        return Checkpoint(str(absolute(folder / path)), None, trust, sides, file)
    if hub_id is None or not _HUB_ID.fullmatch(hub_id):
        keys.refuse("id", "give an id like org/name")
    if revision is None or not COMMIT.fullmatch(revision):
        keys.refuse("revision", "give the commit with all 40 digits")
    checkpoint = Checkpoint(hub_id, revision, trust, sides, file)
    if checkpoint.is_local:
        keys.refuse("id", f"there is a folder {hub_id} here, which would be taken in its place; work elsewhere")
    return checkpoint


def _files(keys: _Keys) -> dict[str, str]:
    files: dict[str, Any] = keys.get("files", dict, {})
    if not all(isinstance(digest, str) and _SHA256.fullmatch(digest) for digest in files.values()):
        keys.refuse("files", "give a SHA-256 for each file")
    if ("path" in keys.values) != bool(files):
        keys.refuse("files", "give the SHA-256 of each file of a local member, and of no other")
    return files


def _method(keys: _Keys) -> str:
    method = keys.text("method") or DEFAULT
    try:
        get_method(method, ("token", "span"))
    except InputError as error:
        raise InputError(f"{keys.place}: {error}") from None
    return method


def _weights(keys: _Keys, members: int) -> tuple[float, ...] | None:
    weights = keys.get("weights", list, None)
    if weights is None:
        return None
    numbers = [weight for weight in weights if isinstance(weight, int | float) and not isinstance(weight, bool)]
    # JSON has no infinity, but a number with many digits becomes one.
    if not len(numbers) == len(weights) == members or any(not 0 <= number <= 1e300 for number in numbers):
        keys.refuse("weights", f"give {members} numbers, none of them negative, or null")
    if sum(weights) <= 0:
        keys.refuse("weights", "one of them must be above 0")
    return tuple(map(float, weights))


def _stop(keys: _Keys) -> tuple[str, ...]:
    stop = keys.get("stop", list, [])
    if not all(isinstance(string, str) and string for string in stop):
        keys.refuse("stop", "give a list of texts, none of them empty")
    return tuple(stop)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


class _Keys:
    """The keys of one object, with messages that name it."""

    __slots__ = ("place", "values")

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place = values, place

    def refuse(self, key: str, way_out: str) -> NoReturn:
        shown = repr(self.values.get(key))
        shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
        raise InputError(f"{self.place}: {key} {shown}: {way_out}")

    def only(self, known: Iterable[str]) -> None:
        if unknown := next((key for key in self.values if key not in known), None):
            raise InputError(f"{self.place}: {unknown[:60]!r} is no key here; there are {', '.join(known)}")

    def get(self, key: str, kind: type, *default: Any) -> Any:
        """The value of a key, of one type; the default where it is absent or null, if there is one."""
        value = self.values.get(key)
        if value is None and default:
            return default[0]
        if not isinstance(value, kind):
            names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a whole number"}
            self.refuse(key, f"give {names[kind]}")
        return value

    def text(self, key: str) -> str | None:
        found: str | None = self.get(key, str, None)
        return found

    def whole(self, key: str, default: Any) -> Any:
        value = self.get(key, int, default)
        if value is not None and (isinstance(value, bool) or not 1 <= value < 2**31):
            self.refuse(key, "give a whole number of at least 1")
        return value

    def one_of(self, key: str, known: tuple[str, ...]) -> str | None:
        value = self.text(key)
        if value is not None and value not in known:
            self.refuse(key, f"give one of {', '.join(known)}")
        return value
