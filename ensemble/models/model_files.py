"""The files that loading a model reads, checked before any weights are read; and their hashes.

A model may come from a stranger. transformers loads any file that the index of the weights names, pickles included, and
allocates any size that the configuration declares.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble.common.files import sha256
from ensemble.common.limits import limited_process
from ensemble.errors import InputError, first_line
from ensemble.models import gguf
from ensemble.models.choices import GGUF_SUFFIX
from ensemble.models.gguf import BESIDE_GGUF, TEMPLATE
from ensemble.models.hub import file_of, info_of, info_on_hub
from ensemble.models.spec import Checkpoint

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

_MARK = re.compile(r"<\S+>|\[\S+\]")


def check_on_hub(checkpoint: Checkpoint) -> None:
    """Raise an InputError if a model has no supported weights, or if no hub answers and there is no download."""
    info = info_on_hub(checkpoint, checkpoint.config_file)
    if info is None:
        return
    name = checkpoint.path_or_id
    names = sorted(sibling.rfilename for sibling in info.siblings or ())
    gguf_files = ", ".join(file for file in names if file.endswith(GGUF_SUFFIX))
    # Before the safetensors: a repository may have both, and the user named the file.
    if checkpoint.gguf is not None:
        if checkpoint.gguf not in names:
            raise InputError(f"it has no file {checkpoint.gguf}, but {gguf_files or 'no GGUF file'}", of=name)
    elif (fault := weights_fault(names)) is not None:
        way_out = f"add gguf_file= with one of {gguf_files}" if gguf_files else "choose a revision or a model with them"
        raise InputError(f"{fault}; {way_out}", of=name)


def check(checkpoint: Checkpoint) -> PreTrainedConfig:
    """Check that a checkpoint can be loaded safely, reading no weights; its configuration, or an InputError."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if checkpoint.gguf is not None:
        gguf.check_name(checkpoint.gguf)
    if not checkpoint.is_local:
        # Asked first: without network, transformers would retry for half a minute for each file.
        check_on_hub(checkpoint)
    if checkpoint.is_local and checkpoint.gguf is not None:
        gguf.check_file(Path(checkpoint.location, checkpoint.gguf))
    elif checkpoint.is_local:
        _check_folder(Path(checkpoint.location))
    elif checkpoint.gguf is not None and (file := file_of(checkpoint, checkpoint.gguf)) is not None:
        gguf.check_file(file)
    check_files(checkpoint)
    if checkpoint.is_local and checkpoint.gguf is None:
        check_weights(checkpoint)
    location, options = gguf.source(checkpoint, gguf.TEXT_ENTRY)
    # A damaged file is reported by errors of many kinds. Code that came with the model has its own.
    unusable = (OSError, ValueError) if checkpoint.trust_remote_code else Exception
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(location, **options)
    except unusable as error:
        raise InputError(_way_out(checkpoint, error), of=checkpoint.path_or_id) from error
    # Asked first: some types, as BART, are in both lists, and their encoder is what a member needs.
    if is_encoder_decoder(config):
        return config
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and "AutoModelForCausalLM" not in (
        getattr(config, "auto_map", None) or {}
    ):
        raise InputError(
            f"a model of type {config.model_type} is neither a causal language model nor an "
            "encoder-decoder one, and only those can be members",
            of=checkpoint.path_or_id,
        )
    # An option that has no effect is more likely a mistake in the pool file than a wish.
    if said := checkpoint.sides.key():
        raise InputError(
            f"a model of type {config.model_type} has no encoder; leave {' and '.join(said)} out",
            of=checkpoint.path_or_id,
        )
    return config


def check_tokenizer(checkpoint: Checkpoint) -> None:
    """Check a tokenizer for a model whose weights are elsewhere; InputError if it is missing or not safe to load."""
    folder = Path(checkpoint.location)
    if checkpoint.is_local and not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder or the hub id of the model's tokenizer")
    if checkpoint.is_local and not (folder / "tokenizer.json").is_file():
        raise InputError(f"{folder}: no tokenizer.json in it; save the model's tokenizer there")
    if not checkpoint.is_local:
        info_on_hub(checkpoint, "tokenizer.json")
    check_files(checkpoint)


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer of a model; InputError if it cannot be loaded."""
    from transformers import AutoTokenizer

    location, options = gguf.source(checkpoint, gguf.TEXT_ENTRY)
    try:
        return AutoTokenizer.from_pretrained(location, **options)
    except Exception as error:  # of transformers, or of code that comes with the model
        raise InputError(f"its tokenizer cannot be loaded ({first_line(error)})", of=checkpoint.path_or_id) from error


def family_of(checkpoint: Checkpoint) -> str:
    """What the sizes of one family of models share: the type of the model, and the digest of its tokenizer."""
    tokenizer = load_tokenizer(checkpoint).backend_tokenizer
    return f"{check(checkpoint).model_type} {hashlib.sha256(tokenizer.to_str().encode()).hexdigest()}"


def control_tokens(checkpoint: Checkpoint) -> list[str]:
    """The texts that a tokenizer reads as control: special tokens, and added ones in brackets (``<think>``)."""
    check_files(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    added = tokenizer.added_tokens_decoder.values()
    marks = [token.content for token in added if token.special or _MARK.fullmatch(token.content)]
    return [*dict.fromkeys([*tokenizer.all_special_tokens, *marks])]


def is_encoder_decoder(config: PreTrainedConfig) -> bool:
    """Whether a configuration is that of a text-to-text model of transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

    # The type is not enough: a decoder that was saved alone (BartForCausalLM) has the same type.
    both_sides = getattr(config, "is_encoder_decoder", False)
    return bool(both_sides) and config.model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file, not a model's folder" if folder.exists() else "there is no such folder"
        raise InputError(f"{folder}: {what}; give the folder that holds config.json, or a hub id like org/name")
    if not (folder / "config.json").is_file():
        if any((folder / name).is_file() for name in ("ensemble.json", "strategy.json")):
            raise InputError(f"{folder}: an exported set, not a model; use it with `advisor run {folder}`")
        raise InputError(f"{folder}: no config.json in it, so it is no model of transformers; give a model's folder")
    # Checked here, because the message of transformers does not tell how to make them safe.
    if fault := weights_fault([path.name for path in folder.iterdir()]):
        raise InputError(f"{folder}: {fault}; save them with model.save_pretrained(FOLDER), or complete the download")
    if not (folder / "tokenizer.json").is_file() and not (folder / "tokenizer.model").is_file():
        raise InputError(
            f"{folder}: no tokenizer.json in it, which the alignment needs; save the model's tokenizer there"
        )


def _way_out(checkpoint: Checkpoint, error: Exception) -> str:
    if checkpoint.gguf is not None:
        return (
            f"its GGUF file {checkpoint.gguf} cannot be used ({type(error).__name__}: {first_line(error)}); it may be "
            "damaged, or of a kind that transformers does not read: take the model's safetensors"
        )
    if not checkpoint.trust_remote_code and "trust_remote_code" in str(error):
        return (
            "it needs custom code from its own files; read that code, and then add --trust-remote-code NAME, and in a "
            "pool file trust_remote_code=true"
        )
    return f"its config.json cannot be used ({first_line(error)}); is it a complete model?"


# Python files are included, because trust_remote_code runs them.
DECIDING = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.py")
"""The files of a folder that decide what a model writes."""
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"[^/\\\0]+\.safetensors")
_LAYERS = re.compile(r"num_hidden_layers|num_(decoder_)?layers|n_layers?|(num_attention|num_key_value|num|n)_heads?")
"""Keys of a configuration whose numbers are at least 1."""
_MOST_BYTES = 2**27
"""The size limit of a file of JSON or a template. The largest tokenizers have 40 MB."""
_TIES = 5
"""How many times a model may have the parameters of its files: tied embeddings are up to four parameters, and stored
once."""
_SMALL = 2**24
"""Parameters and buffers that every model may have, whatever its files have: tables of positions are not stored."""


def check_files(checkpoint: Checkpoint) -> None:
    """Raise an InputError if the files of a model, other than the weights, are not safe to use."""
    if checkpoint.is_local:
        _check_places(checkpoint)
    if checkpoint.gguf is None:
        if file_of(checkpoint, "adapter_config.json") is not None:
            raise InputError(
                "is an adapter of another model (adapter_config.json); merge the two "
                "(merge_and_unload() of peft), and save the result",
                of=checkpoint.path_or_id,
            )
        _check_counts(checkpoint, json_of(checkpoint, "config.json"))
        # transformers goes on without a damaged one, and so without its end tokens.
        json_of(checkpoint, "generation_config.json")
        weight_names(checkpoint)
    names = json_of(checkpoint, "tokenizer_config.json").get("fast_tokenizer_files")
    # transformers reads the newest of these in place of tokenizer.json, and other files where it is missing.
    for name in ["tokenizer.json", *(names if isinstance(names, list) else [])]:
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"tokenizer_config.json: {name!r} is not the name of a file", of=checkpoint.path_or_id)
        path = file_of(checkpoint, name)
        if path is None and name != "tokenizer.json":
            raise InputError(f"tokenizer_config.json names {name}, which is missing", of=checkpoint.path_or_id)
        if path is not None:
            status = path.stat()
            try:
                _try_tokenizer(path, status.st_size, status.st_mtime_ns)
            except InputError as error:
                raise InputError(
                    f"its {name} cannot be used ({error}); take the tokenizer from the model's publisher",
                    of=checkpoint.path_or_id,
                ) from error


@lru_cache(maxsize=256)
def _try_tokenizer(path: Path, size: int, _changed: int) -> None:
    """Try a tokenizer once for each state of its file: a run checks a model at several places."""
    # The largest real one takes 2 s; a busy machine takes longer.
    limited_process().call("ensemble.models.trial:try_tokenizer", str(path.absolute()), seconds=10 + size / 10**6)


def json_of(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """The object in a JSON file of a model; empty without the file, InputError if it has something else."""
    path = file_of(checkpoint, name)
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"its {name} cannot be used ({first_line(error)})", of=checkpoint.path_or_id) from error
    if not isinstance(content, dict):
        raise InputError(f"its {name} cannot be used (not a JSON object)", of=checkpoint.path_or_id)
    return content


def _check_places(checkpoint: Checkpoint) -> None:
    """Check that no file of a local model is a link out of its folder, a device, or too large."""
    folder = Path(checkpoint.location)
    patterns = (*DECIDING, str(TEMPLATE)) if checkpoint.gguf is None else (*BESIDE_GGUF, str(TEMPLATE))
    root = Path(os.path.realpath(folder))
    if root.parent.name == "snapshots" and root.parents[1].name.startswith("models--"):
        # Links may lead to the blobs of this model, and to no other model's.
        root = root.parents[1]  # the hub's cache: the files of a snapshot are links to blobs beside it
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(root):
            raise InputError(f"{path}: is a link to {real}, outside the model's folder; copy the file there")
        if not real.is_file():
            raise InputError(f"{path}: cannot be read as a file; check that the download is complete")
        if path.suffix != ".safetensors" and real.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path}: has {real.stat().st_size:,} bytes; the limit is {_MOST_BYTES:,}")


def _check_counts(checkpoint: Checkpoint, node: object) -> None:
    """Check that a configuration has layers, and not millions: it makes lists as long when it is read."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if isinstance(value, int) and value > gguf.MOST_PARTS and gguf.COUNT.search(str(key)):
            raise InputError(f"config.json: {key} is {value}; no model has so many", of=checkpoint.path_or_id)
        # A model without layers loads, and writes noise.
        if isinstance(value, int) and value < 1 and _LAYERS.fullmatch(str(key)):
            raise InputError(f"config.json: {key} is {value}; a model has at least one", of=checkpoint.path_or_id)
        _check_counts(checkpoint, value)


def weights_fault(names: Sequence[str]) -> str | None:
    """Why a model's weights cannot be loaded, by the names of its files; None if they can."""
    if any(name.endswith(".safetensors") for name in names):
        return None
    # Only for the message; pickles are never loaded.
    pickles = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth")))
    return (
        f"it has weights only as pickle ({pickles[0]}), which can run code when read"
        if pickles
        else "it has no weights (*.safetensors)"
    )


def weight_names(checkpoint: Checkpoint) -> list[list[str]]:
    """Sets of weight files of which loading reads the first; InputError if one is not safetensors in the folder."""
    # The configuration may name another file than the usual one.
    named = json_of(checkpoint, "config.json").get("transformers_weights") or _WEIGHTS
    index = named if str(named).endswith(".index.json") else _INDEX if named == _WEIGHTS else None
    if not isinstance(named, str) or Path(named).name != named or not (index or _SHARD.fullmatch(named)):
        raise InputError(
            f"config.json: transformers_weights {str(named)[:60]!r} is not a safetensors file "
            "of the model; only those are loaded",
            of=checkpoint.path_or_id,
        )
    shards = json_of(checkpoint, index).get("weight_map", {}) if index else {}
    if not isinstance(shards, dict):
        raise InputError(f"{index}: weight_map is not a JSON object", of=checkpoint.path_or_id)
    for shard in shards.values():
        # transformers reads any other file as a pickle, which can run code.
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise InputError(
                f"{index} names {str(shard)[:60]!r}, which is not a safetensors file of the "
                "model; only those are loaded",
                of=checkpoint.path_or_id,
            )
    # A file with all weights goes before the usual index.
    return [*([] if named == index else [[named]]), sorted(set(shards.values()))]


def weights_on_hub(checkpoint: Checkpoint) -> tuple[int | None, int] | None:
    """The number of weights (None if not counted) and the bytes of their files; None if the hub does not tell.

    Only the files that loading reads count: many repositories have the weights again in another format or precision.
    No weights are downloaded.
    """
    try:
        info = info_of(checkpoint)
    except (InputError, ConnectionError):
        return None
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    if checkpoint.gguf is not None:
        stored = sizes.get(checkpoint.gguf, 0)
        count = (getattr(info, "gguf", None) or {}).get("total")
    else:
        sets = (names for names in weight_names(checkpoint) if names and all(name in sizes for name in names))
        stored = sum(sizes[name] for name in next(sets, []))
        count = getattr(info.safetensors, "total", None)
    return (count if isinstance(count, int) else None, stored) if stored else None


def stored_weights(name: str, checkpoint: Checkpoint) -> tuple[int, int] | None:
    """The number of weights, downloaded if on the hub, and the files' bytes; InputError if one is damaged.

    None if the weights are not there. The library that loads the model reports this.
    """
    if checkpoint.gguf is not None:
        file = file_of(checkpoint, checkpoint.gguf)
        return None if file is None else (gguf.weight_count(file), 0)
    paths = _weight_files(checkpoint)
    if not paths:
        return None
    return sum(_weights_in(name, path) for path in paths), sum(path.stat().st_size for path in paths)


def _weight_files(checkpoint: Checkpoint) -> list[Path]:
    """The files that loading reads the weights from; empty if one of them is missing."""
    for names in weight_names(checkpoint):
        paths = [path for each in names if (path := file_of(checkpoint, each)) is not None]
        if paths and len(paths) == len(names):
            return paths
    return []


def check_weights(checkpoint: Checkpoint) -> None:
    """Raise an InputError if a local model's safetensors files, by their headers, are not all there and whole."""
    if not _weight_files(checkpoint):
        folder = Path(checkpoint.location)
        wanted = [name for names in weight_names(checkpoint) for name in names]
        missing = next(name for name in reversed(wanted) if not (folder / name).is_file())
        raise InputError(f"{folder / missing}: is missing, and has weights of the model; complete the download")
    stored_weights(checkpoint.path_or_id, checkpoint)


def _weights_in(name: str, path: Path) -> int:
    from safetensors import safe_open

    try:
        # The library checks the header: shapes, types, and that the file ends where the last weight does.
        with safe_open(path, "np") as file:
            return sum(prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
    except Exception as error:  # the library has its own error, which is derived from Exception only
        raise InputError(
            f"it cannot be loaded: the header of {path} cannot be read, or the file is cut off ({first_line(error)}); "
            "download it again",
            of=name,
        ) from error


def check_size(name: str, config: PreTrainedConfig, make: Callable[[], object], weights: int) -> None:
    """Raise an InputError if a configuration declares a model far larger than its files, before memory is taken."""
    import torch
    from torch.nn.modules import module as hooks

    # Quantised weights are packed: up to 32 of them are one number of 32 bits.
    packed = 32 if getattr(config, "quantization_config", None) else 1
    most, thread = _TIES * packed * weights + _SMALL, threading.get_ident()
    counts = {"parameters": 0, "parts": 0}

    def count(kind: str, number: int) -> None:
        if threading.get_ident() != thread:
            return  # the hooks see the modules of all threads
        counts[kind] += number
        if counts[kind] > most:
            raise _TooLargeError

    def count_numbers(_module: Any, _name: str, tensor: torch.Tensor | None) -> None:
        count("parameters", 0 if tensor is None else tensor.numel())

    # A model on the device meta has no memory; the hooks stop it early, because its modules alone can be too many.
    handles = [
        hooks.register_module_parameter_registration_hook(count_numbers),
        hooks.register_module_buffer_registration_hook(count_numbers),
        hooks.register_module_module_registration_hook(lambda *_: count("parts", 2**10)),
    ]
    try:
        with torch.device("meta"):
            make()
    except _TooLargeError:
        raise InputError(
            f"its configuration declares a model that is far larger than its files ({weights:,} weights); is "
            "the download complete, and config.json the model's own?",
            of=name,
        ) from None
    except Exception:  # noqa: BLE001  # a model that cannot be made on this device; loading it reports what is wrong
        return
    finally:
        for handle in handles:
            handle.remove()


class _TooLargeError(Exception):
    """A model has more parameters than its files can hold."""


def files_of(checkpoint: Checkpoint) -> list[Path]:
    """The local files that decide what a model writes; empty for a model on the hub, which its commit identifies."""
    if not checkpoint.is_local:
        return []
    folder = Path(checkpoint.location)
    patterns = DECIDING if checkpoint.gguf is None else BESIDE_GGUF
    # By name, because hashes are kept by name. The one file of a folder below goes before another of its name.
    files = {path.name: path for pattern in (*patterns, str(TEMPLATE)) for path in folder.glob(pattern)}
    if checkpoint.gguf is not None:
        files[checkpoint.gguf] = folder / checkpoint.gguf
    return sorted(files.values())


def hashes_of(checkpoint: Checkpoint) -> dict[str, str]:
    """The SHA-256 of each file of a local model by name, empty on the hub; InputError if one cannot be read."""
    try:
        return {path.name: sha256(path) for path in files_of(checkpoint)}
    except OSError as error:
        raise InputError(f"cannot be read ({error}); make its files readable", of=checkpoint.path_or_id) from error


def check_unchanged(checkpoint: Checkpoint, saved: Mapping[str, str], since: str = "the ensemble was saved") -> None:
    """Raise an InputError that names a file of a local model whose SHA-256 differs, or that is missing or new."""
    # Names are compared first, because the hashes of many gigabytes take minutes.
    names = {path.name for path in files_of(checkpoint)}
    if different := sorted(names ^ set(saved)):
        what = "is missing" if different[0] in saved else "is new"
        raise InputError(f"changed since {since} ({different[0]} {what})", of=checkpoint.path_or_id)
    # After the names, so that every name is in both.
    for name, digest in hashes_of(checkpoint).items():
        if digest != saved[name]:
            raise InputError(f"changed since {since} ({name} differs)", of=checkpoint.path_or_id)
