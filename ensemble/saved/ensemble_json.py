r"""``ensemble.json``: an ensemble's models and how they decode, as JSON. It holds no weights.

    {
      "schema_version": 1,
      "method": "unite", "k": 10, "weights": [0.5, 0.5], "options": {},
      "generation": {"max_new_tokens": 128, "stop": ["\n"]},
      "members": [
        {"name": "a", "id": "org/a", "revision": "<commit>", "dtype": "bfloat16", "chat_template": "never"},
        {"name": "b", "path": "../models/b", "files": {"model.safetensors": "<SHA-256>"}, "dtype": "float32"},
        {"name": "c", "server": {"address": "openai:http://127.0.0.1:8000/v1#c", "tokenizer": "org/c"}}
      ]
    }

The file may come from a stranger, so every key is checked, and an error names the file and the key.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from ensemble.errors import InputError
from ensemble.methods import DEFAULT, get_method
from ensemble.models.gguf import SUFFIX
from ensemble.models.spec import (
    CHAT_TEMPLATES,
    COMMIT,
    DTYPES,
    HUB_ID,
    READS,
    ChatTemplate,
    Checkpoint,
    EnsembleSpec,
    ModelSpec,
    Reads,
    Sides,
    absolute,
)
from ensemble.servers.address import ServerAddress

SCHEMA_VERSION = 1
_KEYS = ("schema_version", "method", "k", "weights", "options", "generation", "members")
_PLACE_KEYS = ("id", "revision", "path", "files", "gguf_file", "trust_remote_code")
_MEMBER_KEYS = ("name", "server", *_PLACE_KEYS, "dtype", "chat_template", "source", "target", "reads", "quantization")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def to_json(spec: EnsembleSpec, folder: Path) -> str:
    """The content of ``ensemble.json`` in a folder.

    Raises:
        InputError: An option or a quantization configuration cannot be written as JSON.
    """
    generation = {"max_new_tokens": spec.max_new_tokens, "stop": list(spec.stop)}
    generation = {key: value for key, value in generation.items() if value}
    content = {
        "schema_version": SCHEMA_VERSION,
        "method": spec.method,
        "k": spec.k,
        "weights": list(spec.weights) if isinstance(spec.weights, tuple) else spec.weights,
        "options": dict(spec.options),
        **({"generation": generation} if generation else {}),
        "members": [member_to_json(member, folder) for member in spec.members],
    }
    try:
        # NaN is no JSON: other readers would refuse the file.
        return f"{json.dumps(content, indent=2, allow_nan=False)}\n"
    except (TypeError, ValueError) as error:
        raise InputError(f"the ensemble cannot be written as JSON ({error}); leave that option out") from error


def member_to_json(member: ModelSpec, folder: Path) -> dict[str, Any]:
    """A member as an entry of ``members``, in a file that is in a folder."""
    if member.checkpoint.is_remote:
        address = {key: value for key, value in member.checkpoint.as_dict().items() if value is not None}
        if member.checkpoint.tokenizer is not None and Checkpoint(member.checkpoint.tokenizer).is_local:
            address["tokenizer"] = _path_from(folder, member.checkpoint.tokenizer)
        return {"name": member.name, "server": address, "chat_template": member.chat_template or "auto"}
    checkpoint, quantization = member.checkpoint, member.quantization
    if checkpoint.is_local:
        place: dict[str, Any] = {"path": _path_from(folder, checkpoint.path_or_id), "files": dict(member.files)}
    else:
        place = {"id": checkpoint.path_or_id, "revision": checkpoint.revision}
    if quantization is not None and not isinstance(quantization, Mapping):
        quantization = cast(Any, quantization).to_dict()
    return {
        "name": member.name,
        **place,
        **({} if checkpoint.gguf_file is None else {"gguf_file": checkpoint.gguf_file}),
        **({"trust_remote_code": True} if checkpoint.trust_remote_code else {}),
        "dtype": member.dtype or "auto",
        "chat_template": member.chat_template or "auto",
        **checkpoint.sides.key(),
        **({} if quantization is None else {"quantization": quantization}),
    }


def _path_from(folder: Path, model: str) -> str:
    """A model's path: relative if it is in the folder or beside it, so that both can be moved together."""
    path, base = absolute(Path(model)), absolute(folder)
    # Not for the root folder, below which every path would be "beside".
    beside = path.is_relative_to(base.parent) and base.parent != Path(base.anchor)
    return Path(os.path.relpath(path, base)).as_posix() if beside else str(path)


def from_json(text: str, source: str, folder: Path | None) -> EnsembleSpec:
    """Read the content of an ``ensemble.json``.

    Args:
        text: The content.
        source: The file's name in messages.
        folder: The base of local paths; None if there can be no local paths, as on the hub.

    Raises:
        InputError: The file is not an ``ensemble.json``, or a key of it cannot be used.
    """
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: cannot be read as JSON ({error}); save the ensemble again") from None
    if not isinstance(values, dict) or "schema_version" not in values:
        raise InputError(f"{source}: not a saved ensemble, because schema_version is missing; save the ensemble again")
    keys = _Keys(values, source)
    if values["schema_version"] != SCHEMA_VERSION:
        keys.refuse("schema_version", f"this version reads {SCHEMA_VERSION}; use a newer unite-advisor")
    keys.only(_KEYS)
    entries = keys.get("members", list)
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        keys.refuse("members", "give a list of objects, one for each member, the primary first")
    members = tuple(member_from_json(entry, f"{source}: members[{n}]", folder) for n, entry in enumerate(entries))
    names = [member.name for member in members]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{source}: members: two members have the name {duplicate!r}; names must differ")
    generation = _Keys(keys.get("generation", dict, {}), f"{source}: generation")
    generation.only(("max_new_tokens", "stop"))
    return EnsembleSpec(
        members,
        _method(keys),
        keys.positive_integer("k", 10),
        _weights(keys, len(members)),
        keys.get("options", dict, {}),
        generation.positive_integer("max_new_tokens", None),
        _stop(generation),
    )


def member_from_json(values: Mapping[str, Any], source: str, folder: Path | None) -> ModelSpec:
    """Read an entry of ``members``.

    Args:
        values: The entry.
        source: The file's name and the entry's place, in messages.
        folder: The base of local paths; None if there can be no local paths, as on the hub.

    Raises:
        InputError: A key of it cannot be used.
    """
    keys = _Keys(values, source)
    keys.only(_MEMBER_KEYS)
    name = keys.text("name")
    if name is None or not name.strip() or not name.isprintable():
        keys.refuse("name", "give a printable text that is not blank")
    template = cast(ChatTemplate, keys.one_of("chat_template", CHAT_TEMPLATES) or "auto")
    if (server := keys.get("server", dict, None)) is not None:
        keys.only(("name", "server", "chat_template"))
        return ModelSpec(_address(server, f"{source}: server", folder), name, chat_template=template)
    reads = cast("Reads | None", keys.one_of("reads", READS))
    sides = Sides(keys.text("source"), keys.text("target"), reads)
    return ModelSpec(
        _checkpoint(keys, folder, sides),
        name,
        dtype=keys.one_of("dtype", DTYPES) or "auto",
        chat_template=template,
        quantization=keys.get("quantization", dict, None),
        files=_files(keys),
    )


def _address(server: Mapping[str, Any], source: str, folder: Path | None) -> ServerAddress:
    address = ServerAddress.from_dict(server, source)
    # An ensemble on the hub has no folder, so its tokenizers are on the hub, too.
    if address.tokenizer is None or folder is None or not (folder / address.tokenizer).is_dir():
        return address
    return replace(address, tokenizer=str(absolute(folder / address.tokenizer)))


def _checkpoint(keys: _Keys, folder: Path | None, sides: Sides) -> Checkpoint:
    hub_id, path, revision = keys.text("id"), keys.text("path"), keys.text("revision")
    trust, file = keys.get("trust_remote_code", bool, False), keys.text("gguf_file")
    if (hub_id is None) == (path is None):
        keys.refuse("id", "give either a hub id or a path")
    # The file may be a stranger's, and must not lead out of the model's folder.
    if file is not None and (not file.lower().endswith(SUFFIX) or ".." in file or file.startswith("/")):
        keys.refuse("gguf_file", f"give the name of a file of the model that ends in {SUFFIX}")
    if path is not None:
        if folder is None:
            keys.refuse("path", "an ensemble on the hub cannot have a local member; its owner must push that model")
        if revision is not None:
            keys.refuse("revision", "a local member has no revision; leave it out")
        return Checkpoint(str(absolute(folder / path)), None, trust, sides, file)
    if hub_id is None or not HUB_ID.fullmatch(hub_id):
        keys.refuse("id", "give an id like org/name")
    # A branch or tag can move to other weights after the ensemble was measured.
    if revision is None or not COMMIT.fullmatch(revision):
        keys.refuse("revision", "give the commit with all 40 digits")
    checkpoint = Checkpoint(hub_id, revision, trust, sides, file)
    # A folder of this name would be loaded in place of the model whose commit is written here.
    if checkpoint.is_local:
        keys.refuse("id", f"the current directory has a folder {hub_id} that would be used instead; work elsewhere")
    return checkpoint


def _files(keys: _Keys) -> dict[str, str]:
    files: dict[str, Any] = keys.get("files", dict, {})
    if not all(isinstance(digest, str) and _SHA256.fullmatch(digest) for digest in files.values()):
        keys.refuse("files", "give a SHA-256 for each file")
    # Without hashes a changed local model would be loaded, and nothing would tell.
    if ("path" in keys.values) != bool(files):
        keys.refuse("files", "give the SHA-256 of each file of a local member; a hub member has none")
    return files


def _method(keys: _Keys) -> str:
    method = keys.text("method") or DEFAULT
    try:
        get_method(method, ("token", "byte", "span"))
    except InputError as error:
        raise InputError(f"{keys.source}: {error}") from None
    return method


def _weights(keys: _Keys, members: int) -> tuple[float, ...] | Literal["perplexity"] | None:
    if keys.values.get("weights") == "perplexity":
        return "perplexity"
    weights = keys.get("weights", list, None)
    if weights is None:
        return None
    numbers = [weight for weight in weights if isinstance(weight, int | float) and not isinstance(weight, bool)]
    # JSON has no infinity, but Python reads a number with many digits as one.
    if not len(numbers) == len(weights) == members or any(not 0 <= number <= 1e300 for number in numbers):
        keys.refuse("weights", f"give {members} numbers that are 0 or more, or null")
    # They are normalised by their sum.
    if sum(weights) <= 0:
        keys.refuse("weights", "at least one weight must be above 0")
    return tuple(map(float, weights))


def _stop(keys: _Keys) -> tuple[str, ...]:
    stop = keys.get("stop", list, [])
    if not all(isinstance(string, str) and string for string in stop):
        keys.refuse("stop", "give a list of strings that are not empty")
    return tuple(stop)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class _Keys:
    """The keys of one JSON object, read with checks; an error names the object and the key."""

    __slots__ = ("source", "values")

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source

    def refuse(self, key: str, way_out: str) -> NoReturn:
        shown = repr(self.values.get(key))
        shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
        raise InputError(f"{self.source}: {key} {shown}: {way_out}")

    def only(self, known: Iterable[str]) -> None:
        if unknown := next((key for key in self.values if key not in known), None):
            raise InputError(f"{self.source}: unknown key {unknown[:60]!r}; the keys are {', '.join(known)}")

    def get(self, key: str, kind: type, *default: Any) -> Any:
        """The value of a key, which must have this type; the default, if given, for a missing key or null."""
        value = self.values.get(key)
        if value is None and default:
            return default[0]
        if not isinstance(value, kind):
            names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a whole number"}
            self.refuse(key, f"give {names[kind]}")
        return value

    def text(self, key: str) -> str | None:
        value: str | None = self.get(key, str, None)
        return value

    def positive_integer(self, key: str, default: Any) -> Any:
        value = self.get(key, int, default)
        # In Python, true is the whole number 1.
        if value is not None and (isinstance(value, bool) or not 1 <= value < 2**31):
            self.refuse(key, "give a whole number of at least 1")
        return value

    def one_of(self, key: str, known: tuple[str, ...]) -> str | None:
        value = self.text(key)
        if value is not None and value not in known:
            self.refuse(key, f"give one of {', '.join(known)}")
        return value
