"""One model of an ensemble: its tokenizer and vocabulary, its prompts, and its weights here or in another process.

How many threads compute it on the processor is measured.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch

from ensemble.common.limits import limited_process
from ensemble.common.text import check_text
from ensemble.errors import InputError, PromptTooLongError, first_line
from ensemble.models.choices import ChatTemplate
from ensemble.models.encoder_decoder import EncoderDecoder, EncoderDecoderRunner, encoder_length
from ensemble.models.memory import free_memory
from ensemble.models.prompts import Dialogue, Sourced, with_system
from ensemble.models.spec import ModelSpec
from ensemble.models.thinking import forms_of
from ensemble.runtime.cached_runner import CachedRunner
from ensemble.runtime.local_runner import LocalRunner, RecomputingRunner
from ensemble.runtime.long_rope import LongRopeRunner, rope_border
from ensemble.runtime.remote_runner import RemoteRunner
from ensemble.servers.token_client import TokenClient
from ensemble.vocabulary.joint import candidates_of
from ensemble.vocabulary.token_bytes import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Prompt = str | Sequence[dict[str, str]] | Sourced
"""A text, or a conversation (messages with a ``role`` and a ``content``), or a text and the bare source in it."""
_ROWS, _TOKENS, _STEPS = 8, 8, 2
_ROUNDS = 5
_ENOUGH = 0.05
"""Seconds of trials after which no other round follows."""
_HELPS = 1.1
"""Twice the threads must be faster by this factor: they take cores from other programs, and wait for each other."""
_LARGEST = 2**30
"""Parameters of the largest model that is measured. In larger ones each operation is long, so threads hardly wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(ABC):
    """A loaded model. A subclass says where its weights are."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary  # the tokenizer's ids as bytes
    context: int | None  # tokens that its context holds (its encoder's, and its decoder's); None if it has no limit
    chat_template: ChatTemplate  # whether prompts go through the tokenizer's
    seq2seq: EncoderDecoder | None  # None for a causal model
    device: torch.device  # of its logits in this process
    place: str  # the machine and the device of its weights; members at one place share its memory
    token_size: int  # bytes of memory that each token of a row takes while the model runs
    spec: ModelSpec | None = None  # with the commit and the numeric type found; None for a model made in memory

    @abstractmethod
    def runner(self) -> LocalRunner | RemoteRunner:
        """A new runner of the model, with an empty batch."""

    @abstractmethod
    def free_memory(self) -> int | None:
        """Bytes of free memory at its place; None if that is not known."""

    @property
    def is_here(self) -> bool:
        """Whether its weights are in this process, and so its logits."""
        return isinstance(self, LocalMember)

    @property
    def local(self) -> LocalMember:
        """The same member, for code that needs its weights here; InputError if they are in another process."""
        if not isinstance(self, LocalMember):
            raise InputError("this method needs the model in this process, but it is behind a server", of=self.name)
        return self

    def of_line(self, line: ModelSpec) -> Member:
        """The same loaded model with the name, the prompts and the settings of another line."""
        found = self.spec
        # The requests of a server's member are made by its own line alone.
        if found is None or line.is_remote:
            return self
        spec = replace(line, checkpoint=found.checkpoint, device=found.device, dtype=found.dtype)
        spec = replace(spec, quantization=found.quantization)
        if spec == found:
            return self
        template = check_chat_template(line.chat_template, self.tokenizer, line.name)
        return replace(self, name=line.name, chat_template=template, spec=spec)

    def as_writing(self, *, alone: bool) -> Member:
        """The member as it writes: alone also the special tokens that mark its thinking, and not among others.

        There, the special token with which its answer ends is EOS: no other member can write it.
        """
        vocabulary, names = self.vocabulary, self.vocabulary.special_tokens
        forms = forms_of(None if self.spec is None else self.spec.thinking)
        marks = {index for form in forms for index in form.special_tokens(names)} if alone else set()
        ends = set() if alone else {index for form in forms for index in form.end_tokens(names)}
        if marks == vocabulary.marks and ends == vocabulary.ends:
            return self
        eos_ids = tuple(index for index in vocabulary.eos_ids if index not in vocabulary.ends)
        return replace(self, vocabulary=Vocabulary(self.tokenizer, eos_ids, vocabulary.size, marks, ends))

    @property
    def uses_chat_template(self) -> bool:
        """Whether prompts go through the tokenizer's chat template."""
        return self.chat_template == "always" or (self.chat_template == "auto" and bool(self.tokenizer.chat_template))

    def encode_prompt(self, prompt: Prompt | Dialogue) -> list[int]:
        """The ids of a prompt; InputError if it has none, or leaves no room in the context."""
        row = self.prompt_ids(prompt)
        # A causal model needs room for at least one new token; an encoder's context may be full.
        most = None if self.context is None else self.context - (self.seq2seq is None)
        length = encoder_length(row) or len(row)
        if most is not None and length > most:
            raise PromptTooLongError(
                f"a prompt of {length} tokens does not fit its context of {self.context}; it may have {most}",
                of=self.name,
            )
        return row

    def prompt_ids(self, prompt: Prompt | Dialogue) -> list[int]:
        """The ids of a prompt, by the chat template or the default encoding; InputError if it has none.

        The model continues a last message of the assistant. A :class:`Dialogue` is one text without a chat template. Of
        a :class:`Sourced`, an encoder reads the source; the ids of encoders are negative (see
        :mod:`ensemble.models.encoder_decoder`).
        """
        system = None if self.spec is None else self.spec.system
        # First, because only here it is known whether the model has an encoder.
        if isinstance(prompt, Sourced):
            prompt = prompt.of(self.name) if self.seq2seq is None else self.seq2seq.text(prompt, self.name)
        if isinstance(prompt, Dialogue):
            prompt = prompt.messages if self.uses_chat_template else prompt.text
        if isinstance(prompt, str) and not self.uses_chat_template:
            text, adds_special = prompt if system is None else f"{system}\n\n{prompt}", True
        else:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            text = self._templated(messages if system is None else with_system(system, messages))
            adds_special = False
        check_text("the prompt", text)
        ids = list(self.tokenizer(text, add_special_tokens=adds_special)["input_ids"])
        if not ids:
            raise InputError("an empty prompt has no tokens to begin with; give it at least one", of=self.name)
        # On a GPU such an id ends the whole process, and on a CPU it is an IndexError without a name.
        if (largest := max(ids)) >= self.vocabulary.size:
            token = self.tokenizer.convert_ids_to_tokens(largest)
            raise InputError(f"the prompt has {token!r}, which the model has no embedding for", of=self.name)
        return ids if self.seq2seq is None else self.seq2seq.row(ids)

    def _templated(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation as the text that the chat template makes of it."""
        if not self.tokenizer.chat_template:
            raise InputError(
                "its tokenizer has no chat template, so it takes a text and no list of messages; in a chat request, "
                "let the user and the assistant take turns, and the user speak last",
                of=self.name,
            )
        try:
            template = self.tokenizer.get_chat_template()
            # A template is a program of a stranger, so it runs in another process, under limits.
            text = limited_process().call(
                "ensemble.models.trial:render", template, messages, dict(self.tokenizer.special_tokens_map)
            )
        except (InputError, ValueError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise InputError(
                f"its chat template does not take a conversation of {roles}: {first_line(error)}", of=self.name
            ) from error
        return str(text)

    def beginning(self) -> list[int]:
        """The ids before a text without a prompt: BOS, or EOS as in lm-eval; InputError if it has neither."""
        index = self.tokenizer.bos_token_id
        # In many models EOS separates the documents of the training, so a text may follow it.
        index = self.tokenizer.eos_token_id if index is None else index
        if index is None:
            raise InputError(
                "its tokenizer has neither BOS nor EOS, so a text cannot begin; give a prompt", of=self.name
            )
        return [index] if self.seq2seq is None else self.seq2seq.row([index])

    def shorten(self, prompt: list[int], room: int) -> list[int]:
        """A prompt without its first tokens, to leave room for ``room`` tokens; InputError if it cannot."""
        if self.context is None:
            return prompt
        encoded = encoder_length(prompt)
        # The decoder has a separate context, so the encoder's may be full.
        most = self.context + len(prompt) - encoded if encoded else self.context - room
        if most < 1:
            raise InputError(
                f"{room} tokens leave no room for a prompt in its context of {self.context}; ask for fewer",
                of=self.name,
            )
        # The end stays: it is what the model continues.
        return prompt[-most:]

    def most_tokens(self, prompt: Sequence[int]) -> int | None:
        """Tokens of the longest row with this prompt; None if there is no limit."""
        # The encoder's ids are in the row, and take no room in the decoder's context.
        return None if self.context is None else self.context + encoder_length(prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMember(Member):
    """A member whose weights are in this process."""

    model: PreTrainedModel  # causal or encoder-decoder, in evaluation mode
    window: int | None  # tokens that it attends to; None if it attends to all
    recompute_reason: str | None  # why its rows are recomputed at every step; None if its cache is used

    def runner(self, kinds: int = 1) -> LocalRunner:
        """See :meth:`Member.runner`. Prompts of so many kinds come in turns, as those of so many members."""
        if self.seq2seq is not None:
            return EncoderDecoderRunner(self.model)
        border, make = rope_border(self.model.config), partial(self._plain_runner, kinds)
        return make() if border is None else LongRopeRunner(self.model, border, make)

    def _plain_runner(self, kinds: int, after: int = 0) -> LocalRunner:
        """A runner that computes a common prefix for itself only if it has more than ``after`` tokens."""
        # A wrong cache gives wrong texts without an error, so a doubtful one is not used.
        if self.recompute_reason:
            return RecomputingRunner(self.model)
        return CachedRunner(self.model, self.window, after + 1, kinds)

    def free_memory(self) -> int | None:
        """See :meth:`Member.free_memory`."""
        return free_memory(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMember(Member):
    """A member whose weights are behind a server."""

    client: TokenClient

    def check_k(self, k: int) -> None:
        """Raise an InputError if the server gives fewer than the k likeliest candidates."""
        most = self.client.limits.k
        if most < min(k, self.vocabulary.size):
            raise InputError(
                f"its server gives {most} top log-probabilities, which is too few for k={k}; allow up to "
                f"64 of them (vllm serve --max-logprobs 64), or give k={most}",
                of=self.name,
            )

    def runner(self) -> RemoteRunner:
        """See :meth:`Member.runner`."""
        # Runners hold ids only, so many of them may share one connection.
        return RemoteRunner(self.client, candidates_of(self.vocabulary))

    def free_memory(self) -> int | None:
        """See :meth:`Member.free_memory`."""
        # A server decides itself how many rows run at a time, and lets the others wait.
        return None


def check_chat_template(wanted: ChatTemplate | None, tokenizer: PreTrainedTokenizerBase, name: str) -> ChatTemplate:
    """The use of the chat template that a line wants; InputError if its tokenizer has none, and it must be used."""
    if wanted == "always" and not tokenizer.chat_template:
        raise InputError("its tokenizer has no chat template; use chat_template=auto or never", of=name)
    return wanted or "auto"


def step_device(members: Sequence[Member]) -> torch.device:
    """The device of the steps: the primary's; the CPU, where logits arrive, if a member is elsewhere."""
    return members[0].device if all(member.is_here for member in members) else torch.device("cpu")


def fastest_threads(member: LocalMember, most: int) -> int:
    """The number of torch's threads, at most ``most``, with which a model on the processor is fastest now.

    Threads wait for each other after each operation. So small models gain nothing from several, and become much slower
    where other programs use the cores. Of about equal numbers it is the smallest.
    """
    if member.seq2seq is not None or member.model.num_parameters() > _LARGEST:
        return most
    before = torch.get_num_threads()
    try:
        while most > 1 and not _is_faster(lambda: _work(member), most, most // 2):
            most //= 2
    finally:
        torch.set_num_threads(before)
    return most


def set_fastest_threads(members: Sequence[Member]) -> None:
    """Let the calling thread compute with the threads of the member that needs the most; see :func:`fastest_threads`.

    It is called by the thread that computes, because OpenMP keeps other threads for each. Where two threads have some,
    more of them than cores, they sleep instead of waiting actively, and small operations gain nothing from them.
    """
    most = torch.get_num_threads()
    local = [member for member in members if isinstance(member, LocalMember) and member.model.device.type == "cpu"]
    if local:
        torch.set_num_threads(max(fastest_threads(member, most) for member in local))


def _is_faster(work: Callable[[], None], many: int, few: int) -> bool:
    seconds: dict[int, list[float]] = {many: [], few: []}
    for _ in range(_ROUNDS):
        for threads, own in seconds.items():
            torch.set_num_threads(threads)
            start = time.perf_counter()
            work()
            own.append(time.perf_counter() - start)
        if sum(map(sum, seconds.values())) > _ENOUGH:
            break
    return _HELPS * median(seconds[many]) < median(seconds[few])


@torch.inference_mode()
def _work(member: LocalMember) -> None:
    runner = member.runner()
    runner.admit([[1] * _TOKENS] * _ROWS)
    for _ in range(_STEPS):
        runner.feed(runner.lengths, [[1]] * _ROWS)
