"""One model of an ensemble: its weights, its tokenizer as a vocabulary, its prompts and its contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ensemble.checkpoint import DTYPES, ChatTemplate, Checkpoint, Sides, check, first_line, is_encoder_decoder
from ensemble.errors import InputError, MemberError, PromptTooLongError
from ensemble.memory import check_memory, free_memory
from ensemble.prompts import Sourced
from ensemble.rows import CachedRows, RecomputedRows, Rows
from ensemble.seat import Here, Seat
from ensemble.seq2seq import EncoderDecoder, encoder_decoder_of, encoder_length
from ensemble.site import Site
from ensemble.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Prompt = str | Sequence[dict[str, str]] | Sourced
"""A text, or a conversation (messages with a ``role`` and a ``content``), or a text and the bare source in it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """How a member was loaded, which is what is saved of it.

    Attributes:
        checkpoint: Its place; of one of the hub, the commit that its files were of.
        dtype: What its weights are held in.
        quantization: As it was given to :func:`load_member`.
    """

    checkpoint: Checkpoint
    dtype: str
    quantization: object | None


@dataclass(frozen=True, slots=True)
class Member:
    """A loaded model.

    Attributes:
        name: How it is called in messages and reports.
        seat: Where its weights are.
        tokenizer: Its tokenizer.
        vocabulary: The tokenizer's ids as bytes.
        context: Tokens that its context holds (its encoder's, and its decoder's); None where it has no limit.
        chat_template: Whether prompts go through the tokenizer's chat template.
        seq2seq: How it is asked where it has an encoder; None for a causal model.
        loaded: How it was loaded; None where it was made of a model in memory.
    """

    name: str
    seat: Seat
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary
    context: int | None
    chat_template: ChatTemplate
    seq2seq: EncoderDecoder | None = None
    loaded: Loaded | None = None

    @property
    def here(self) -> Here:
        """Its weights, for what needs them in this process.

        Raises:
            InputError: They are elsewhere.
        """
        if not isinstance(self.seat, Here):
            raise InputError(f"{self.name}: its weights are on a cluster, and this needs them in its own process")
        return self.seat

    @property
    def model(self) -> PreTrainedModel:
        """See :class:`ensemble.seat.Here`."""
        return self.here.model

    @property
    def note(self) -> str | None:
        """See :class:`ensemble.seat.Here`."""
        return self.here.note

    @property
    def window(self) -> int | None:
        """See :class:`ensemble.seat.Here`."""
        return self.here.window

    @property
    def device(self) -> torch.device:
        """Where its logits come to, or what stands for them."""
        return self.seat.device

    @property
    def uses_chat_template(self) -> bool:
        """Whether prompts are put through the tokenizer's chat template."""
        return self.chat_template == "always" or (self.chat_template == "auto" and bool(self.tokenizer.chat_template))

    def rows(self) -> Rows:
        """An empty batch of contexts."""
        return self.here.rows()

    def site(self) -> Site:
        """An empty batch of contexts, with their logits, where its weights are."""
        return self.seat.site()

    @property
    def token_size(self) -> int:
        """Bytes that it takes for each token of a row while it runs."""
        return self.seat.token_size

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt that leaves room in the context; see :meth:`prompt_ids`.

        Raises:
            InputError: The prompt has no ids, or leaves no room in the context.
        """
        row = self.prompt_ids(prompt)
        # A decoder's own context has room for what is written; an encoder's may be filled.
        most = None if self.context is None else self.context - (self.seq2seq is None)
        length = encoder_length(row) or len(row)
        if most is not None and length > most:
            raise PromptTooLongError(
                f"{self.name}: a prompt of {length} tokens does not fit its context of {self.context}; "
                f"it may have {most}"
            )
        return row

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt: by the chat template where the run says so, else the tokenizer's default encoding.

        Args:
            prompt: A text, or a conversation as chat templates take it (which needs one); where its last message is the
                assistant's, that is gone on with. Of a :class:`Sourced`, causal models take the prompt, and those with
                an encoder what they are to read.

        Returns:
            Ids to go on behind. Those that an encoder reads are negative; see :mod:`ensemble.seq2seq`.

        Raises:
            InputError: The prompt has no ids, or one that the model has no embedding for, or the chat template does not
                take the conversation.
        """
        if isinstance(prompt, Sourced):
            prompt = prompt.prompt if self.seq2seq is None else self.seq2seq.text(prompt)
        if self.uses_chat_template or not isinstance(prompt, str):
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            ids = list(self.tokenizer(self._templated(messages), add_special_tokens=False)["input_ids"])
        else:
            ids = list(self.tokenizer(prompt)["input_ids"])
        if not ids:
            raise InputError(f"{self.name}: an empty prompt has no tokens to begin with; give it at least one")
        if (largest := max(ids)) >= self.vocabulary.size:
            token = self.tokenizer.convert_ids_to_tokens(largest)
            raise InputError(f"{self.name}: the prompt has {token!r}, which the model has no embedding for")
        return ids if self.seq2seq is None else self.seq2seq.row(ids)

    def _templated(self, messages: list[dict[str, str]]) -> str:
        """A conversation in the words of the chat template."""
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            raise InputError(f"{self.name}: its tokenizer has no chat template, so its prompts must be text")
        begun = bool(messages) and messages[-1]["role"] == "assistant"
        try:
            text = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=not begun, continue_final_message=begun, tokenize=False
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise InputError(
                f"{self.name}: its chat template does not take a conversation of {roles}: {first_line(error)}"
            ) from error
        return str(text)

    def beginning(self) -> list[int]:
        """What a text that is no continuation goes on behind: BOS, or EOS where there is none, as lm-eval has it.

        Raises:
            InputError: The tokenizer has neither.
        """
        index = self.tokenizer.bos_token_id
        index = self.tokenizer.eos_token_id if index is None else index
        if index is None:
            raise InputError(
                f"{self.name}: its tokenizer has neither BOS nor EOS, so a text cannot begin; give a prompt"
            )
        return [index] if self.seq2seq is None else self.seq2seq.row([index])

    def shorten(self, prompt: list[int], room: int) -> list[int]:
        """A prompt without its beginning, where that is needed to leave room for so many tokens behind it.

        Raises:
            InputError: The context has no room for anything before them.
        """
        if self.context is None:
            return prompt
        encoded = encoder_length(prompt)
        # What an encoder reads takes none of the room.
        most = self.context + len(prompt) - encoded if encoded else self.context - room
        if most < 1:
            raise InputError(
                f"{self.name}: {room} tokens leave no room for a prompt in its context of {self.context}; ask for fewer"
            )
        return prompt[-most:]

    def most_tokens(self, prompt: Sequence[int]) -> int | None:
        """Tokens that a row with this prompt may have; None where there is no limit.

        What an encoder reads takes none of the room of what is written.
        """
        return None if self.context is None else self.context + encoder_length(prompt)


@dataclass(frozen=True, slots=True)
class Loading:
    """What is to be loaded as a member; see :func:`load_member`."""

    checkpoint: Checkpoint
    name: str
    device: str = "cpu"
    dtype: str = "auto"
    chat_template: ChatTemplate = "auto"
    quantization: object | None = None

    def load(self) -> Member:
        """Load it into this process."""
        return load_member(
            self.checkpoint,
            name=self.name,
            device=self.device,
            dtype=self.dtype,
            chat_template=self.chat_template,
            quantization=self.quantization,
        )


def load_member(
    checkpoint: Checkpoint,
    *,
    name: str | None = None,
    device: str = "cpu",
    dtype: str = "auto",
    chat_template: ChatTemplate = "auto",
    quantization: object | None = None,
) -> Member:
    """Load a model and its tokenizer.

    Args:
        checkpoint: Where it comes from.
        name: How to call it; the last part of its path or id where None.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...
        dtype: One of DTYPES; ``auto`` is the checkpoint's own, and float32 for GGUF files.
        chat_template: ``auto`` uses the tokenizer's template where it has one; ``always`` demands one.
        quantization: A quantization configuration of transformers (``BitsAndBytesConfig(...)``, ...), which decides
            how the weights are held; None to hold them as they are, and for GGUF files.

    Raises:
        InputError: What was given cannot be used; see :func:`ensemble.checkpoint.check`.
        MemberError: It looked usable, and failed while it was loaded.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    kind = AutoModelForSeq2SeqLM if is_encoder_decoder(check(checkpoint)) else AutoModelForCausalLM
    place = parse_device(device)
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype}: not one of {', '.join(DTYPES)}")
    name = name or checkpoint.name
    options = checkpoint.options
    if checkpoint.gguf is not None:
        if quantization is not None:
            raise InputError(f"{name}: a GGUF file says itself how its weights are held; leave quantization out")
        # What transformers makes of quantised weights; said here so that a file's headers decide nothing.
        dtype = "float32" if dtype == "auto" else dtype
    if quantization is None:
        check_memory(name, checkpoint, dtype, place)
    else:
        # Quantised weights are made where they stay; they cannot be moved.
        options |= {"quantization_config": quantization, "device_map": {"": place}}
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.location, **checkpoint.options)
        pair: Any = kind.from_pretrained(
            checkpoint.location, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
        )
        model, loaded = pair
        if quantization is None:
            model.to(place)
    except (torch.OutOfMemoryError, MemoryError) as error:
        free = free_memory(place)
        known = "" if free is None else f", where {free / 2**30:.1f} GiB are free"
        raise MemberError(f"{name}: not enough memory on {device}{known} ({first_line(error)})") from error
    except Exception as error:  # damaged weights surface as errors of many libraries
        raise MemberError(f"{name}: it cannot be loaded: {type(error).__name__}: {first_line(error)}") from error
    # The library fills what a file lacks with random numbers, and only warns.
    if missing := sorted(loaded["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise MemberError(f"{name}: its weights lack {missing[0]}{more}; is the download complete?")
    member = member_of(model, tokenizer, name=name, chat_template=chat_template, sides=checkpoint.sides)
    # The library reads all files of the commit that it found the configuration at, wherever a branch has moved since.
    commit = getattr(model.config, "_commit_hash", None) or checkpoint.revision
    source = checkpoint if checkpoint.is_local else replace(checkpoint, revision=commit)
    held = dtype if quantization is not None else str(model.dtype).removeprefix("torch.")
    return replace(member, loaded=Loaded(source, held, quantization))


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
