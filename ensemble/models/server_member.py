"""Members behind servers: their tokenizers are read here, and their servers are asked what they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from ensemble.errors import InputError
from ensemble.models.check import check_tokenizer, load_tokenizer
from ensemble.models.member import Member
from ensemble.models.model_files import json_of
from ensemble.models.spec import Checkpoint, ModelSpec
from ensemble.runtime.remote_runner import RemoteRunner
from ensemble.servers.address import ServerAddress
from ensemble.servers.token_client import RequestCounts, TokenClient, connect
from ensemble.vocabulary.joint import candidates_of
from ensemble.vocabulary.token_bytes import Vocabulary

_HARD_TEXTS = ("Hello, World! It's 3.14", "  two\n\n\tspaces", "naïve café 今天🙂", "<s></s><|x|>[INST]")
"""Texts that tokenizers of different models write in different ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMember(Member):
    """A member whose weights are behind a server."""

    client: TokenClient

    @property
    def counts(self) -> RequestCounts:
        """What its requests took so far, those of all runners together."""
        return self.client.counts

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
        """See :meth:`ensemble.models.member.Member.runner`."""
        # Runners hold ids only, so many of them may share one connection.
        return RemoteRunner(self.client, candidates_of(self.vocabulary))

    def free_memory(self) -> int | None:
        """See :meth:`ensemble.models.member.Member.free_memory`."""
        # A server decides itself how many rows run at a time, and lets the others wait.
        return None


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
    if spec.chat_template == "always" and not tokenizer.chat_template:
        raise InputError("its tokenizer has no chat template; use chat_template=auto or never", of=spec.name)
    size = json_of(checkpoint, "config.json").get("vocab_size")
    largest = max(tokenizer.get_vocab().values()) + 1
    vocabulary = Vocabulary(
        tokenizer, _eos_ids(checkpoint), max(size, largest) if isinstance(size, int) and size < 2**24 else largest
    )
    client = TokenClient(spec.name, server, address.timeout, address.concurrency)
    _check_tokenizer(client, tokenizer, address)
    return ServerMember(
        name=spec.name,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        # Servers refuse a context that leaves no room for a token.
        context=None if client.limits.context is None else client.limits.context - 1,
        chat_template=spec.chat_template or "auto",
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
