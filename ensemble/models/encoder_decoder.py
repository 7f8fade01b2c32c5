"""Encoder-decoder models as members: a translation model next to causal ones, as DeePEn pairs LLaMA-2 with NLLB.

One row of ids holds what the encoder reads and what the decoder continues from, so that code for rows works for both
kinds of models. The encoder's ids come first, each written as its complement ``~id``, which is negative. Then come the
ids that the decoder begins with (``decoder_start_token_id``, and the target language or ``forced_bos_token_id``), then
the emitted ids. With NLLB, "We now have mice" to German is ``~eng_Latn ~We ~now ... ~</s> | </s> deu_Latn | Wir ...``.

The decoder has no cache here: it counts positions in slots and cannot have holes, so it runs anew at each step. The
encoder reads a source once. Of the generation configuration only EOS and the first tokens count: beams, bans on
repetition and a forced EOS at the limit are ways to search, and the ensemble has another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import BaseModelOutput

from ensemble.errors import InputError
from ensemble.models.choices import Reads
from ensemble.models.prompts import Sourced
from ensemble.models.spec import Sides
from ensemble.runtime.forward_pass import pass_logits, plan_passes, run_passes, to_device
from ensemble.runtime.local_runner import Ids, LocalRunner, last_logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class EncoderDecoder:
    """How a prompt becomes a row of an encoder-decoder model."""

    start: tuple[int, ...]  # the ids that its decoder begins with, at least one
    reads: Reads  # whether its encoder reads a prompt's ``source``, where it has one, or always the ``prompt``

    def text(self, prompt: Sourced, name: str) -> str:
        """The text that the encoder of the model with a name reads."""
        return prompt.source if self.reads == "source" and prompt.source is not None else prompt.of(name)

    def row(self, source: Ids) -> list[int]:
        """The row to begin with, for a source with these ids."""
        # A complement, because the negative of id 0 would be 0 again.
        return [*(~index for index in source), *self.start]


def encoder_length(row: Ids) -> int:
    """How many ids at the front of a row the encoder reads; 0 in a causal model's row."""
    return next((n for n, index in enumerate(row) if index >= 0), len(row))


def encoder_decoder_of(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sides: Sides,
) -> EncoderDecoder:
    """How a prompt becomes a row; sets the source language; InputError if the tokenizer does not know one.

    The tokenizer of a many-to-many translation model knows languages, and needs a target language.
    """
    reads = sides.reads or "source"
    if sides.source is not None:
        # Setting an unknown language raises nothing; the tokenizer would write the unknown token.
        _language(name, tokenizer, "source", sides.source)
        tokenizer.src_lang = sides.source
    start = _configured(model, "decoder_start_token_id")
    start = _configured(model, "bos_token_id") if start is None else start
    if start is None:
        raise InputError(
            "its configuration has no decoder_start_token_id, so its decoder cannot begin; add it", of=name
        )
    first = _configured(model, "forced_bos_token_id")
    is_plain_start = start in (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id)
    if sides.target is not None:
        first = _language(name, tokenizer, "target", sides.target)
        # mBART of 25 languages begins with the language itself.
        return EncoderDecoder((start, first) if is_plain_start else (first,), reads)
    # Without a language such a model writes any of its languages, and no error tells.
    if first is None and is_plain_start and hasattr(tokenizer, "src_lang"):
        raise InputError("it writes many languages; say which one, as target=deu_Latn does", of=name)
    return EncoderDecoder((start,) if first is None else (start, first), reads)


def _configured(model: PreTrainedModel, key: str) -> int | None:
    """An id of the generation configuration, or of the model's configuration."""
    # In this order, as generate() of transformers: the generation configuration goes first.
    values = (getattr(config, key, None) for config in (model.generation_config, model.config))
    return next((index for index in values if isinstance(index, int)), None)


def _language(name: str, tokenizer: PreTrainedTokenizerBase, option: str, language: str) -> int:
    """The id of a language's token."""
    if not hasattr(tokenizer, "src_lang"):
        raise InputError(f"its tokenizer knows no languages; leave {option}={language} out", of=name)
    index = tokenizer.convert_tokens_to_ids(language)
    if not isinstance(index, int) or index not in set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}:
        raise InputError(
            f"{option}={language}: its tokenizer has no language of that name; NLLB's are like deu_Latn", of=name
        )
    return index


class EncoderDecoderRunner(LocalRunner):
    """Runs an encoder-decoder model; the encoder reads a source once."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        # For each row the encoder's states [ids, width] of its source.
        self._encoded: list[Tensor] = []

    def prefill(self, prompts: Sequence[Ids], last: int = 1) -> Tensor:
        """See :class:`ensemble.runtime.local_runner.LocalRunner`."""
        rows = [list(prompt) for prompt in prompts]
        encoded = self._encode([_source(row) for row in rows])
        self._rows += rows
        self._encoded += encoded
        return self._forward(rows, encoded, last)

    def extend(self, keep: Sequence[int], new: Sequence[Ids], last: int = 1) -> Tensor:
        """See :class:`ensemble.runtime.local_runner.LocalRunner`."""
        rows = [[*row[:kept], *ids] for row, kept, ids in zip(self._rows, keep, new, strict=True)]
        # A row can be cut as far back as into its source, which makes it another source.
        # The encoder's pass is the expensive one, so unchanged sources are not read again.
        changed = [n for n, row in enumerate(rows) if _source(row) != _source(self._rows[n])]
        if changed:
            for n, encoded in zip(changed, self._encode([_source(rows[n]) for n in changed]), strict=True):
                self._encoded[n] = encoded
        self._rows = rows
        return self._forward(rows, self._encoded, last)

    def drop(self, kept: Sequence[int]) -> None:
        """See :class:`ensemble.runtime.local_runner.LocalRunner`."""
        self._rows = [self._rows[n] for n in kept]
        self._encoded = [self._encoded[n] for n in kept]

    def take(self, other: LocalRunner) -> None:
        """See :class:`ensemble.runtime.local_runner.LocalRunner`."""
        super().take(other)
        self._encoded += cast(EncoderDecoderRunner, other)._encoded

    def _encode(self, sources: Sequence[Ids]) -> list[Tensor]:
        """The encoder's states [ids, width] of each source."""
        # Some models count positions by the ids that are not padding, so padding needs the model's own id for it.
        padding = _configured(self._model, "pad_token_id") or 0
        ids = pad_sequence(
            [torch.tensor(source, dtype=torch.long) for source in sources], batch_first=True, padding_value=padding
        )
        mask = _mask([len(source) for source in sources])
        states = self._model.get_encoder()(
            input_ids=to_device(ids, self._device), attention_mask=to_device(mask, self._device)
        )[0]
        # Copies: a view would keep the memory of the longest source's places.
        return [states[n, : len(source)].clone() for n, source in enumerate(sources)]

    def _forward(self, rows: Sequence[Ids], encoded: Sequence[Tensor], last: int) -> Tensor:
        decoded = [torch.tensor(row[encoder_length(row) :], dtype=torch.long) for row in rows]
        # The decoder computes the logits of all of its tokens, and a translator's vocabulary is large.
        most = pass_logits(self._device, self._model.config.get_text_config(decoder=True).vocab_size)
        return run_passes(
            plan_passes(list(map(len, decoded)), most),
            lambda numbers: self._pass([decoded[n] for n in numbers], [encoded[n] for n in numbers], last),
        )

    def _pass(self, decoded: Sequence[Tensor], encoded: Sequence[Tensor], last: int) -> Tensor:
        # Rows are padded on the right, where the decoder never sees the padding.
        logits: Tensor = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=pad_sequence(list(encoded), batch_first=True)),
            attention_mask=to_device(_mask([len(states) for states in encoded]), self._device),
            decoder_input_ids=to_device(pad_sequence(list(decoded), batch_first=True), self._device),
            use_cache=False,
        ).logits
        ends = to_device(torch.tensor([len(ids) for ids in decoded]), self._device)
        return last_logits(logits, ends, last).to(self._logits_device)


def _source(row: Ids) -> list[int]:
    return [~index for index in row[: encoder_length(row)]]


def _mask(lengths: Sequence[int]) -> Tensor:
    """A mask [rows, longest]: ones for the ids of a row, zeros for its padding."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
