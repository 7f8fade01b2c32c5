"""Check a checkpoint before any weights are read: its folder, its format and its configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble.errors import InputError, first_line
from ensemble.models import gguf, gguf_cache
from ensemble.models.hub import check_on_hub, info_on_hub
from ensemble.models.model_files import check_files, check_weights, file_of, weights_fault
from ensemble.models.spec import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_MARK = re.compile(r"<\S+>|\[\S+\]")


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
    location, options = gguf_cache.source(checkpoint, gguf_cache.TEXT)
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

    location, options = gguf_cache.source(checkpoint, gguf_cache.TEXT)
    try:
        return AutoTokenizer.from_pretrained(location, **options)
    except Exception as error:  # of transformers, or of code that comes with the model
        raise InputError(f"its tokenizer cannot be loaded ({first_line(error)})", of=checkpoint.path_or_id) from error


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
