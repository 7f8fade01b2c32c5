"""One model of an ensemble: its weights, its tokenizer as a vocabulary, its prompts and its contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ensemble.errors import InputError, PromptTooLongError
from ensemble.models.encoder_decoder import EncoderDecoder, encoder_length
from ensemble.models.seat import Here, Seat
from ensemble.models.spec import ChatTemplate, ModelSpec, Sourced, first_line
from ensemble.runtime.model_runner import Site
from ensemble.runtime.rows import Rows
from ensemble.vocabulary.token_bytes import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Prompt = str | Sequence[dict[str, str]] | Sourced
"""A text, or a conversation (messages with a ``role`` and a ``content``), or a text and the bare source in it."""


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
        spec: How it was loaded, with the commit and numeric type that were found; None for a model made in memory.
    """

    name: str
    seat: Seat
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary
    context: int | None
    chat_template: ChatTemplate
    seq2seq: EncoderDecoder | None = None
    spec: ModelSpec | None = None

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
        """See :class:`ensemble.models.seat.Here`."""
        return self.here.model

    @property
    def note(self) -> str | None:
        """See :class:`ensemble.models.seat.Here`."""
        return self.here.note

    @property
    def window(self) -> int | None:
        """See :class:`ensemble.models.seat.Here`."""
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
            Ids to go on behind. Those that an encoder reads are negative; see :mod:`ensemble.models.encoder_decoder`.

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
            raise InputError(
                f"{self.name}: its tokenizer has no chat template, so it takes a text and no conversation; in a chat "
                "request send one message, the user's"
            )
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
