"""From a checkpoint to a member: it is checked, measured against the memory that is free, and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ensemble.errors import InputError, MemberError
from ensemble.models.check import check, is_encoder_decoder
from ensemble.models.encoder_decoder import encoder_decoder_of
from ensemble.models.member import Member
from ensemble.models.memory import check_memory, free_memory
from ensemble.models.seat import Here
from ensemble.models.spec import DTYPES, ChatTemplate, ModelSpec, Sides, first_line
from ensemble.runtime.rows import CachedRows, RecomputedRows
from ensemble.vocabulary.token_bytes import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_member(spec: ModelSpec) -> Member:
    """Load a model and its tokenizer into this process.

    Args:
        spec: The model and how to load it.

    Raises:
        InputError: The spec cannot be used; see :func:`ensemble.models.check.check`.
        MemberError: The checkpoint looked usable, and failed while it was loaded.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    checkpoint, name, dtype, quantization = spec.checkpoint, spec.name, spec.dtype, quantization_of(spec)
    auto_class = AutoModelForSeq2SeqLM if is_encoder_decoder(check(checkpoint)) else AutoModelForCausalLM
    device = parse_device(spec.device)
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype}: not one of {', '.join(DTYPES)}")
    options = checkpoint.options
    if checkpoint.gguf is not None:
        if quantization is not None:
            raise InputError(f"{name}: a GGUF file defines its own quantization; leave quantization out")
        # transformers makes the weights dense. Its own choice depends on the file's headers, so the type is set here.
        dtype = "float32" if dtype == "auto" else dtype
    if quantization is None:
        check_memory(name, checkpoint, dtype, device)
    else:
        # Quantised weights cannot be moved, so they are created on their device.
        options |= {"quantization_config": quantization, "device_map": {"": device}}
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.location, **checkpoint.options)
        pair: Any = auto_class.from_pretrained(
            checkpoint.location, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
        )
        model, info = pair
        if quantization is None:
            model.to(device)
    except (torch.OutOfMemoryError, MemoryError) as error:
        free = free_memory(device)
        known = "" if free is None else f", which has {free / 2**30:.1f} GiB free"
        raise MemberError(f"{name}: not enough memory on {spec.device}{known} ({first_line(error)})") from error
    except Exception as error:  # damaged weights raise errors of many libraries
        raise MemberError(f"{name}: it cannot be loaded: {type(error).__name__}: {first_line(error)}") from error
    # transformers fills missing weights with random numbers and only warns, so this must be an error here.
    if missing := sorted(info["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise MemberError(f"{name}: its weights lack {missing[0]}{more}; is the download complete?")
    member = member_of(model, tokenizer, name=name, chat_template=spec.chat_template, sides=checkpoint.sides)
    # transformers reads all files from the commit at which it found the configuration, even if the branch moves on.
    commit = getattr(model.config, "_commit_hash", None) or checkpoint.revision
    source = checkpoint if checkpoint.is_local else replace(checkpoint, revision=commit)
    loaded_dtype = dtype if quantization is not None else str(model.dtype).removeprefix("torch.")
    return replace(member, spec=replace(spec, checkpoint=source, dtype=loaded_dtype, quantization=quantization))


def quantization_of(spec: ModelSpec) -> object | None:
    """A model's quantization configuration as transformers needs it.

    Raises:
        InputError: transformers does not know the configuration.
    """
    if not isinstance(spec.quantization, Mapping):
        return spec.quantization
    from transformers.quantizers.auto import AutoQuantizationConfig

    try:
        config: object = AutoQuantizationConfig.from_dict(dict(spec.quantization))
    except Exception as error:  # each library raises its own errors for a wrong configuration
        raise InputError(f"{spec.name}: quantization: {type(error).__name__}: {error}") from error
    return config


def member_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    chat_template: ChatTemplate = "auto",
    sides: Sides | None = None,
) -> Member:
    """Make a member of a loaded model and its tokenizer; ``sides`` says how an encoder-decoder model is asked."""
    if chat_template == "always" and not tokenizer.chat_template:
        raise InputError(f"{name}: its tokenizer has no chat template; use chat_template=auto or never")
    model = model.eval()
    eos = getattr(model.generation_config, "eos_token_id", None)
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),)
    head = model.get_output_embeddings()
    size = head.weight.shape[0] if head is not None else model.config.vocab_size
    vocabulary = Vocabulary(tokenizer, eos_ids, size)
    context = getattr(model.config, "max_position_embeddings", None)
    seq2seq = None
    if is_encoder_decoder(model.config):
        seq2seq = encoder_decoder_of(name, model, tokenizer, sides or Sides())
    seat = Here(model, _window(model), why_recompute(model), size, encodes=seq2seq is not None)
    return Member(name, seat, tokenizer, vocabulary, context, chat_template, seq2seq)


def _window(model: PreTrainedModel) -> int | None:
    """Tokens that a model attends to, in those of its layers that do not attend to all."""
    # GPT-Neo's name for it is the second one.
    named = (getattr(model.config, name, None) for name in ("sliding_window", "window_size"))
    return next((window for window in named if isinstance(window, int)), None)


@torch.inference_mode()
def why_recompute(model: PreTrainedModel) -> str | None:
    """Why a model's contexts must be recomputed at every step; None where its cache can be used.

    Whether a cache can be padded and rolled back is tried out, not looked up: a short sequence is fed in pieces, with
    padding and a roll-back, and must give the logits that it gives when read at once. A wrong position or a state that
    remembers what was taken back shows as a difference far above rounding.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        return "its decoder is run anew at each step, as it is no decoder-only model"
    if getattr(model.config, "attention_chunk_size", None):
        # Too long for what follows to notice; and where a chunk begins would be counted in slots, not in tokens.
        return "it attends in chunks"
    size = model.config.vocab_size
    long, short = ([(7 * n + start) % size for n in range(1, length)] for start, length in ((3, 10), (5, 6)))
    try:
        plain = RecomputedRows(model).admit([long, short])[:, 0]
        rows = CachedRows(model, _window(model))
        rows.admit([long[:7], short[:4]])
        rows.feed([7, 4], [[1, 2], [3 % size]])
        pieces = rows.feed([6, 4], [long[6:], short[4:]])[:, 0]
    except Exception as error:  # noqa: BLE001  # whatever its forward cannot do with a cache, it need not do
        return f"its cache cannot be used ({type(error).__name__}: {first_line(error)})"
    # Half precision rounds at about one part in a hundred; a wrong context is off by far more.
    tolerance = 1e-3 if plain.dtype in (torch.float32, torch.float64) else 0.1
    scale = float((plain - plain.mean(dim=1, keepdim=True)).float().norm())
    # Not the other way round: in float64 some models make NaN of masked padding, and NaN is above nothing.
    if not float((pieces - plain).float().norm()) <= tolerance * scale:
        return "its state cannot be padded and rolled back"
    return None


def parse_device(device: str) -> torch.device:
    """A device that is there.

    Raises:
        InputError: Not a device's name, or none that this machine has.
    """
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        there = ["cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
        raise InputError(f"device {device}: not on this machine; use one of {', '.join(there)}") from error
    return place
