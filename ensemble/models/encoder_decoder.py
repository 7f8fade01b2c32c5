"""Encoder-decoder models as members: a translation model beside causal ones, as DeePEn pairs LLaMA-2 with NLLB.

What the encoder reads and what the decoder goes on from stand in one row of ids, so that a row is cut, fed and compared
like any other: the encoder's ids come first, each written as its complement ``~id``, which is negative; then the ids
that the decoder begins with (``decoder_start_token_id``, and the target language or ``forced_bos_token_id``); then what
has been emitted. With NLLB, "We now have mice" to German is ``~eng_Latn ~We ~now ... ~</s> | </s> deu_Latn | Wir ...``.

Not covered: a cache of the decoder. Its positions are counted in slots and cannot have holes, so the decoder is run
anew at each step, while the encoder reads a source once. Of the generation configuration only EOS and the beginning
count: beams, bans on repetition and a forced EOS at the limit are ways to search, and the ensemble has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import BaseModelOutput

from ensemble.errors import InputError
from ensemble.models.spec import Reads, Sides, Sourced

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class EncoderDecoder:
    """How a member with an encoder is asked.

    Attributes:
        start: The ids that its decoder begins with, at least one.
        reads: Whether its encoder reads a prompt's ``source`` where there is one, or the ``prompt`` all the same.
    """

    start: tuple[int, ...]
    reads: Reads

    def text(self, prompt: Sourced) -> str:
        """What its encoder reads."""
        return prompt.source if self.reads == "source" else prompt.prompt

    def row(self, source: Ids) -> list[int]:
        """The row that a text begins with, whose source has these ids."""
        return [*(~index for index in source), *self.start]


def encoder_length(row: Ids) -> int:
    """How many ids at the front of a row are the encoder's; none in a causal model's."""
    return next((n for n, index in enumerate(row) if index >= 0), len(row))


def encoder_decoder_of(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sides: Sides,
) -> EncoderDecoder:
    """Find out how a model with an encoder is asked; tells its tokenizer the source language.

    Args:
        name: How the member is called in messages.
        model: An encoder-decoder model.
        tokenizer: Its tokenizer; many-to-many translation models have one that knows languages.
        sides: Its languages, and what it reads.

    Raises:
        InputError: The tokenizer does not know a language, or a target language is missing.
    """
    reads = sides.reads or "source"
    if sides.source is not None:
        _language(name, tokenizer, "source", sides.source)
        tokenizer.src_lang = sides.source
    start = _configured(model, "decoder_start_token_id")
    start = _configured(model, "bos_token_id") if start is None else start
    if start is None:
        raise InputError(
            f"{name}: its configuration has no decoder_start_token_id, so its decoder cannot begin; add it"
        )
    first = _configured(model, "forced_bos_token_id")
    plain = start in (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id)
    if sides.target is not None:
        first = _language(name, tokenizer, "target", sides.target)
        # mBART of 25 languages begins with the language itself.
        return EncoderDecoder((start, first) if plain else (first,), reads)
    if first is None and plain and hasattr(tokenizer, "src_lang"):
        raise InputError(f"{name}: it writes many languages; say which one, as target=deu_Latn does")
    return EncoderDecoder((start,) if first is None else (start, first), reads)


def _configured(model: PreTrainedModel, key: str) -> int | None:
    """An id of the generation configuration, or of the model's own."""
    found = (getattr(config, key, None) for config in (model.generation_config, model.config))
    return next((index for index in found if isinstance(index, int)), None)


def _language(name: str, tokenizer: PreTrainedTokenizerBase, option: str, language: str) -> int:
    """The id of a language's token."""
    if not hasattr(tokenizer, "src_lang"):
        raise InputError(f"{name}: its tokenizer knows no languages; leave {option}={language} out")
    index = tokenizer.convert_tokens_to_ids(language)
    if not isinstance(index, int) or index not in set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}:
        raise InputError(
            f"{name}: {option}={language}: its tokenizer has no language of that name; NLLB's are like deu_Latn"
        )
    return index


class EncodedRows:
    """Contexts of an encoder-decoder model, see :class:`ensemble.runtime.rows.Rows`; the encoder reads a source once.

    Args:
        model: An encoder-decoder model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._device = model.device
        self._rows: list[list[int]] = []
        # For each row what the encoder made of its source: [ids, width].
        self._encoded: list[Tensor] = []

    @property
    def lengths(self) -> list[int]:
        """See :class:`ensemble.runtime.rows.Rows`."""
        return [len(row) for row in self._rows]

    def admit(self, prompts: Sequence[Ids], last: int = 1) -> Tensor:
        """See :class:`ensemble.runtime.rows.Rows`."""
        rows = [list(prompt) for prompt in prompts]
        encoded = self._encode([_source(row) for row in rows])
        self._rows += rows
        self._encoded += encoded
        return self._run(rows, encoded, last)

    def feed(self, keep: Sequence[int], new: Sequence[Ids], last: int = 1) -> Tensor:
        """See :class:`ensemble.runtime.rows.Rows`."""
        rows = [[*row[:kept], *ids] for row, kept, ids in zip(self._rows, keep, new, strict=True)]
        changed = [n for n, row in enumerate(rows) if _source(row) != _source(self._rows[n])]
        if changed:
            for n, encoded in zip(changed, self._encode([_source(rows[n]) for n in changed]), strict=True):
                self._encoded[n] = encoded
        self._rows = rows
        return self._run(rows, self._encoded, last)

    def drop(self, kept: Sequence[int]) -> None:
        """See :class:`ensemble.runtime.rows.Rows`."""
        self._rows = [self._rows[n] for n in kept]
        self._encoded = [self._encoded[n] for n in kept]

    def _encode(self, sources: Sequence[Ids]) -> list[Tensor]:
        """What the encoder makes of each source: [ids, width]."""
        # Some models count positions by what is no padding, so it must be their own id for it.
        padding = _configured(self._model, "pad_token_id") or 0
        ids = pad_sequence(
            [torch.tensor(source, dtype=torch.long) for source in sources], batch_first=True, padding_value=padding
        )
        mask = _mask([len(source) for source in sources])
        states = self._model.get_encoder()(input_ids=ids.to(self._device), attention_mask=mask.to(self._device))[0]
        # Copies: what is left of the longest source's places would keep their memory.
        return [states[n, : len(source)].clone() for n, source in enumerate(sources)]

    def _run(self, rows: Sequence[Ids], encoded: Sequence[Tensor], last: int) -> Tensor:
        """Logits [rows, last, V]; rows are padded on the right, which a decoder never sees."""
        written = [torch.tensor(row[encoder_length(row) :], dtype=torch.long) for row in rows]
        ends = torch.tensor([len(ids) for ids in written], device=self._device)
        logits: Tensor = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=pad_sequence(list(encoded), batch_first=True)),
            attention_mask=_mask([len(states) for states in encoded]).to(self._device),
            decoder_input_ids=pad_sequence(written, batch_first=True).to(self._device),
            use_cache=False,
        ).logits
        places = (ends[:, None] - last + torch.arange(last, device=self._device)).clamp(min=0)
        return logits.gather(1, places[:, :, None].expand(-1, -1, logits.shape[2]))


def _source(row: Ids) -> list[int]:
    """The encoder's ids of a row."""
    return [~index for index in row[: encoder_length(row)]]


def _mask(lengths: Sequence[int]) -> Tensor:
    """Ones [rows, longest] where a row has something, zeros behind it."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
