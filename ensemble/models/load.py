"""From a model's spec to a member: it is checked, measured against the memory that is free, and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from ensemble.common.text import first_of
from ensemble.errors import InputError, MemberError, UniteError, first_line
from ensemble.models import gguf
from ensemble.models.choices import DTYPES, ChatTemplate
from ensemble.models.encoder_decoder import encoder_decoder_of
from ensemble.models.hub import pinned
from ensemble.models.member import LocalMember, Member, ServerMember, check_chat_template
from ensemble.models.memory import check_memory, free_memory, parse_device, token_size, usable_dtype
from ensemble.models.model_files import (
    check,
    check_files,
    check_on_hub,
    check_size,
    check_tokenizer,
    is_encoder_decoder,
    json_of,
    load_tokenizer,
    stored_weights,
)
from ensemble.models.spec import Checkpoint, ModelSpec, Sides, resolve_device
from ensemble.runtime.cached_runner import CachedRunner
from ensemble.runtime.local_runner import LocalRunner, RecomputingRunner, logits_device
from ensemble.servers.address import ServerAddress
from ensemble.servers.token_client import TokenClient, connect
from ensemble.vocabulary.token_bytes import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_HARD_TEXTS = ("Hello, World! It's 3.14", "  two\n\n\tspaces", "naïve café 今天🙂", "<s></s><|x|>[INST]")
"""Texts that tokenizers of different models write in different ids."""


def check_models(specs: Sequence[ModelSpec]) -> None:
    """Check all about some models that needs no weights; InputError if a device, folder or id cannot be used."""
    for spec in specs:
        checkpoint = spec.checkpoint
        if checkpoint.is_remote:
            check_tokenizer(spec.tokenizer)
            continue
        check(checkpoint)
        parse_device(spec.device or "auto")


def load_members(specs: Sequence[ModelSpec]) -> list[Member]:
    """Load members of this process and of servers; InputError if a spec cannot be used, MemberError if one fails."""
    loaded: dict[ModelSpec, Member] = {}
    # Servers first: one that is not there is found at once, and loading takes minutes.
    for spec in sorted(specs, key=lambda spec: not spec.is_remote):
        # Lines with the same weights share them.
        if spec.loaded not in loaded:
            loaded[spec.loaded] = load_server_member(spec) if spec.is_remote else load_member(spec)
    return [loaded[spec.loaded].of_line(spec) for spec in specs]


def load_member(spec: ModelSpec) -> LocalMember:
    """Load a model and its tokenizer into this process.

    Raises:
        InputError: The spec cannot be used; see :func:`ensemble.models.model_files.check`.
        MemberError: The checkpoint looked usable, and failed while it was loaded.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    checkpoint, name, dtype, quantization = spec.weights, spec.name, spec.dtype or "auto", quantization_of(spec)
    config = check(checkpoint)
    auto_class = AutoModelForSeq2SeqLM if is_encoder_decoder(config) else AutoModelForCausalLM
    device = parse_device(spec.device or "auto")
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype}: not one of {', '.join(DTYPES)}")
    added: dict[str, Any] = {}
    if checkpoint.gguf is not None:
        if quantization is not None:
            raise InputError("a GGUF file defines its own quantization; leave quantization out", of=name)
        # transformers makes the weights dense. Its own choice depends on the file's headers, so the type is set here.
        dtype = "float32" if dtype == "auto" else dtype
    weights = stored_weights(name, checkpoint)
    dtype = usable_dtype(dtype, config, device, 0 if weights is None or quantization is not None else weights[0])
    if weights is not None:
        make = partial(auto_class.from_config, config, trust_remote_code=checkpoint.trust_remote_code)
        check_size(name, config, make, weights[0])
        if quantization is None:
            check_memory(name, weights, dtype, device, is_gguf=checkpoint.gguf is not None)
    if quantization is not None:
        # Quantised weights cannot be moved, so they are created on their device.
        added = {"quantization_config": quantization, "device_map": {"": device}}
    try:
        location, options = gguf.source(checkpoint, gguf.TEXT_ENTRY)
        tokenizer = AutoTokenizer.from_pretrained(location, **options)
        location, options = gguf.source(checkpoint, dtype)
        pair: Any = auto_class.from_pretrained(
            location, dtype=dtype, use_safetensors=True, output_loading_info=True, **options, **added
        )
        model, info = pair
        if quantization is None:
            model.to(device)
    except (torch.OutOfMemoryError, MemoryError) as error:
        free = free_memory(device)
        known = "" if free is None else f", which has {free / 2**30:.1f} GiB free"
        raise MemberError(f"not enough memory on {device}{known} ({first_line(error)})", of=name) from error
    except Exception as error:  # damaged weights raise errors of many libraries
        raise MemberError(f"it cannot be loaded: {type(error).__name__}: {first_line(error)}", of=name) from error
    # transformers fills missing weights with random numbers and only warns, so this must be an error here.
    if missing := sorted(info["missing_keys"]):
        raise MemberError(f"its weights lack {first_of(missing, 1)}; is the download complete?", of=name)
    if checkpoint.gguf is not None:
        gguf.keep_text(checkpoint, config, tokenizer)
        gguf.keep_weights(checkpoint, config, model, dtype)
    member = member_of(model, tokenizer, name=name, chat_template=spec.chat_template or "auto", sides=checkpoint.sides)
    loaded_dtype = dtype if quantization is not None else str(model.dtype).removeprefix("torch.")
    loaded = replace(
        spec,
        checkpoint=pinned(checkpoint),
        device=resolve_device(spec.device or "auto"),
        dtype=loaded_dtype,
        quantization=quantization,
    )
    return replace(member, spec=loaded)


def load_server_member(spec: ModelSpec) -> ServerMember:
    """Load the tokenizer of a model behind a server, and find out what the server gives.

    InputError if the tokenizer is another one than the server's, or the server gives no top log-probabilities by id;
    MemberError if the server fails.
    """
    address = cast("ServerAddress", spec.checkpoint)
    checkpoint = spec.tokenizer
    check_tokenizer(checkpoint)
    server = connect(address, spec.name)
    tokenizer = load_tokenizer(checkpoint)
    template = check_chat_template(spec.chat_template, tokenizer, spec.name)
    size = json_of(checkpoint, "config.json").get("vocab_size")
    largest = max(tokenizer.get_vocab().values()) + 1
    vocabulary = Vocabulary(
        tokenizer, _eos_ids(checkpoint), max(size, largest) if isinstance(size, int) and size < 2**24 else largest
    )
    client = TokenClient(spec.name, server, address.timeout)
    _check_tokenizer(client, tokenizer, address)
    return ServerMember(
        name=spec.name,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        # Servers refuse a context that leaves no room for a token.
        context=None if client.limits.context is None else client.limits.context - 1,
        chat_template=template,
        seq2seq=None,
        # Its requests for tokens do not limit the thinking, so that is closed here, as for a model of this process.
        spec=replace(spec, thinking_budget=address.thinking_budget),
        # Log-probabilities arrive on the CPU.
        device=torch.device("cpu"),
        place=address.url,
        token_size=0,
        client=client,
    )


def _eos_ids(checkpoint: Checkpoint) -> tuple[int, ...]:
    """The ids that end a generation, from the configuration beside the tokenizer; empty without one."""
    for name in ("generation_config.json", "config.json"):
        ids = json_of(checkpoint, name).get("eos_token_id")
        found: Sequence[object] = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if found and all(isinstance(index, int) and 0 <= index < 2**24 for index in found):
            return tuple(index for index in found if isinstance(index, int))
    return ()


class TokenizerOnly(Member):
    """A member without weights: it writes prompts as the loaded member would."""

    def runner(self) -> LocalRunner:
        """Refused: without weights there is nothing to run."""
        raise InputError("only its tokenizer is loaded", of=self.name)

    def free_memory(self) -> int | None:
        """See :meth:`Member.free_memory`."""
        return None


def load_tokenizer_only(spec: ModelSpec, template: ChatTemplate) -> TokenizerOnly:
    """Load a model's tokenizer, as a member that writes prompts."""
    checkpoint = spec.tokenizer
    if spec.is_remote:
        check_tokenizer(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    check_chat_template(template, tokenizer, spec.name)
    return TokenizerOnly(
        name=spec.name,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer, (), max(tokenizer.get_vocab().values()) + 1),
        context=None,
        chat_template=template,
        seq2seq=None,
        device=torch.device("cpu"),
        place="",
        token_size=0,
        spec=spec,
    )


def _check_tokenizer(client: TokenClient, tokenizer: Any, address: ServerAddress) -> None:
    """Make sure that the server's model writes a text in the same ids as the tokenizer."""
    for text in _HARD_TEXTS:
        own, theirs = tokenizer(text, add_special_tokens=False)["input_ids"], client.tokenize(text)
        if theirs is None:
            return
        if list(own) != theirs:
            raise InputError(
                f"tokenizer={address.tokenizer} is not the tokenizer of the server's model: it writes "
                f"{text!r} in other ids; give the folder or id that the server was started with",
                of=client.name,
            )


def load_helper(place: str, kinds: Mapping[str, Any], device: str) -> tuple[Any, Any]:
    """Load a model that helps a method and is no member, such as a reward model, with its tokenizer.

    Only safetensors files are read, and no code that came with the model runs. ``kinds`` are classes by the
    architecture in the configuration; under "" the one of transformers for others. InputError if the files cannot be
    used.
    """
    from transformers import AutoConfig, AutoTokenizer

    checkpoint = Checkpoint(place)
    if not checkpoint.is_local:
        check_on_hub(checkpoint)
    check_files(checkpoint)
    # Always said, because transformers asks on the terminal where trust_remote_code is missing, and runs code on a yes.
    options: dict[str, Any] = {**pinned(checkpoint).options, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(checkpoint.location, **options)
        kind = next((kinds[name] for name in config.architectures or () if name in kinds), kinds[""])
        if (stored := stored_weights(place, checkpoint)) is not None:
            make = partial(kind.from_config, trust_remote_code=False) if kind is kinds[""] else kind
            check_size(place, config, lambda: make(config), stored[0])
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.location, config=config, **options)
        most = getattr(config, "max_position_embeddings", 2**20)
        tokenizer.model_max_length = min(tokenizer.model_max_length, most)
        model, info = kind.from_pretrained(
            checkpoint.location, config=config, use_safetensors=True, output_loading_info=True, **options
        )
    except UniteError:
        raise
    except Exception as error:  # damaged files raise errors of many libraries
        raise InputError(f"it cannot be loaded by {kinds[''].__name__} ({first_line(error)})", of=place) from error
    # transformers fills missing weights with random numbers. A token without an embedding ends all work on a GPU.
    missing = [f"no trained {name}" for name in sorted(info["missing_keys"])]
    if missing or max(tokenizer.get_vocab().values()) >= config.vocab_size:
        problem = missing[0] if missing else "fewer embeddings than its tokenizer has tokens"
        raise InputError(f"it has {problem}; name another model", of=place)
    return model.to(parse_device(device)).eval(), tokenizer


def quantization_of(spec: ModelSpec) -> object | None:
    """A quantization configuration as transformers needs it; InputError if it does not know the configuration."""
    if not isinstance(spec.quantization, Mapping):
        return spec.quantization
    from transformers.quantizers.auto import AutoQuantizationConfig

    try:
        config: object = AutoQuantizationConfig.from_dict(dict(spec.quantization))
    except Exception as error:  # each library raises its own errors for a wrong configuration
        raise InputError(f"quantization: {type(error).__name__}: {error}", of=spec.name) from error
    return config


def member_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    chat_template: ChatTemplate = "auto",
    sides: Sides | None = None,
) -> LocalMember:
    """Make a member of a loaded model; InputError if the tokenizer lacks a chat template or a language."""
    check_chat_template(chat_template, tokenizer, name)
    model = model.eval()
    eos = getattr(model.generation_config, "eos_token_id", None)
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    if not all(isinstance(index, int) and index >= 0 for index in eos_ids):
        raise InputError(
            f"eos_token_id is {str(eos)[:60]!r}; give the id of a token in generation_config.json", of=name
        )
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    seq2seq = None
    if is_encoder_decoder(model.config):
        seq2seq = encoder_decoder_of(name, model, tokenizer, sides or Sides())
    # Many models have more rows of logits than the tokenizer has ids.
    size = config.vocab_size if head is None else head.weight.shape[0]
    reason = why_recompute(model)
    return LocalMember(
        name=name,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer, eos_ids, size),
        context=getattr(config, "max_position_embeddings", None),
        chat_template=chat_template,
        seq2seq=seq2seq,
        device=logits_device(model.device),
        place=str(model.device),
        # Without a cache, the logits of every token take the memory, once more in float32.
        token_size=2 * 4 * size if reason else token_size(config, model.dtype),
        model=model,
        window=_window(model),
        recompute_reason=reason,
    )


def _window(model: PreTrainedModel) -> int | None:
    """Tokens that a model attends to, in those of its layers that do not attend to all."""
    # The second name is GPT-Neo's.
    config = model.config.get_text_config()  # a model that also reads images keeps these values in a separate part
    values = (getattr(config, name, None) for name in ("sliding_window", "window_size"))
    return next((window for window in values if isinstance(window, int)), None)


@torch.inference_mode()
def why_recompute(model: PreTrainedModel) -> str | None:
    """Why a model's rows must be recomputed at every step; None if its cache can be padded and rolled back.

    The test is a trial, not a list of architectures: a short sequence is fed in pieces, with padding and a roll-back,
    and must give the logits that it gives when read at once. A wrong position, or a state that remembers tokens that
    were rolled back, shows as a difference far above rounding.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        return "its decoder is run anew at each step, as it is no decoder-only model"
    config = model.config.get_text_config()
    if getattr(config, "attention_chunk_size", None):
        # Chunks are longer than the trial, and would begin at slots instead of tokens.
        return "it attends in chunks"
    size = config.vocab_size
    long, short = ([(7 * n + start) % size for n in range(1, length)] for start, length in ((3, 10), (5, 6)))
    try:
        plain = RecomputingRunner(model).admit([long, short])
        runner = CachedRunner(model, _window(model))
        runner.admit([long[:7], short[:4]])
        runner.feed([7, 4], [[1, 2], [3 % size]])
        pieces = runner.feed([6, 4], [long[6:], short[4:]])
    except Exception as error:  # noqa: BLE001  # a model that fails with a cache in any way can run without one
        return f"its cache cannot be used ({type(error).__name__}: {first_line(error)})"
    # Half precision rounds at about one part in a hundred; a wrong context is off by far more.
    tolerance = 1e-3 if plain.dtype in (torch.float32, torch.float64) else 0.1
    scale = float((plain - plain.mean(dim=1, keepdim=True)).float().norm())
    # "not <=" instead of ">": in float64 some models make NaN of masked padding, and NaN is above nothing.
    if not float((pieces - plain).float().norm()) <= tolerance * scale:
        return "its state cannot be padded and rolled back"
    return None
