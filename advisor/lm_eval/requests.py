"""lm-eval's requests in this project's terms: contexts, continuations and generation settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.models.member import Member
from ensemble.score.long_text import Passage

NEUTRAL: Mapping[str, float] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_new_tokens": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
}
"""Unsupported generation settings, and the values with which they have no effect."""
_SAMPLING = ("top_k", "top_p", "min_p", "typical_p", "temperature")
"""Settings without an effect on greedy decoding."""
_IRRELEVANT = ("do_sample", "use_cache")
_Number = TypeVar("_Number", int, float)


class Conversation(NamedTuple):
    """Messages as JSON: every member reads them by its own chat template.

    lm-eval expects the text that a chat template makes of the messages, but each member has its own template. So the
    messages pass through lm-eval as JSON, as they do for its models behind a server.

    Attributes:
        json: A list of messages with a ``role`` and a ``content``.
    """

    json: str

    def encode(self, encoding: str) -> bytes:
        """The JSON as bytes; lm-eval hashes its requests."""
        return self.json.encode(encoding)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages."""
        messages: list[dict[str, str]] = json.loads(self.json)
        return messages


Context = str | Conversation


def split_space(context: Context, continuation: str) -> tuple[Context, str]:
    """A context and its continuation, split as lm-eval's own backends do.

    White space at the end of the context moves to the start of the continuation.
    """
    if isinstance(context, Conversation):
        return context, continuation
    # Tokenizers put a space into the token of the word after it.
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def settings_of(generation_kwargs: Mapping[str, Any], max_tokens: int, seed: int) -> Settings:
    """The settings in a task's ``generation_kwargs`` and ``--gen_kwargs``.

    Args:
        generation_kwargs: As lm-eval gives them.
        max_tokens: Longest text where they do not say.
        seed: Seed of random draws where they do not say.

    Raises:
        InputError: An ensemble does not support a setting, or its value cannot be used.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    # lm-eval fills in defaults only for absent settings, not for those that are None.
    settings = normalize_gen_kwargs(
        {name: value for name, value in generation_kwargs.items() if value is not None}, max_tokens
    )
    # Without repetitions: tasks and --gen_kwargs often name the same strings.
    stop = tuple(dict.fromkeys(str(string) for string in settings.pop("until") if string))
    limit = _number(int, settings, "max_gen_toks", max_tokens)
    draws = bool(settings.get("do_sample"))
    # 1.0 is the default of transformers.
    temperature = _number(float, settings, "temperature", 1.0) if draws else 0.0
    if not temperature:
        settings = {name: value for name, value in settings.items() if name not in _SAMPLING}
    top_p, seed = _number(float, settings, "top_p", 1.0), _number(int, settings, "seed", seed)
    # -1 turns it off in vLLM. Settings refuses what is no whole number.
    top_k = 0 if (top_k := settings.pop("top_k", 0)) == -1 else top_k
    settings.pop("temperature", None)
    for name, value in settings.items():
        if name not in _IRRELEVANT and (name not in NEUTRAL or value != NEUTRAL[name]):
            way_out = (
                f"--gen_kwargs {name}={NEUTRAL[name]} turns it off" if name in NEUTRAL else "take it out of the task"
            )
            raise InputError(f"generation_kwargs {name}={value}: an ensemble does not support it; {way_out}")
    return Settings(limit, stop, temperature, top_p, seed, top_k=top_k)


def _number(kind: Callable[[Any], _Number], settings: dict[str, Any], name: str, default: _Number) -> _Number:
    """A setting as a number, taken out of the others."""
    value = settings.pop(name, default)
    try:
        return kind(value)
    # OverflowError: int(inf).
    except (OverflowError, TypeError, ValueError):
        raise InputError(f"generation_kwargs {name}={value!r}: give a number") from None


def without_system(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """A conversation without its system messages, which some chat templates refuse."""
    return [dict(message) for message in messages if message["role"] != "system"]


_UNLIMITED = 2048
"""Tokens of a window for models without a context limit, as in lm-eval."""
_START = -1
"""Placeholder for the token before a text, which differs between members; not a token id."""


def windows(members: Sequence[Member], text: str) -> list[Passage]:
    """A text as passages, each with the prompts before it.

    Args:
        members: The primary first.
        text: Any text.

    Raises:
        InputError: A member's tokenizer has neither BOS nor EOS, or a context has no room for any window.
    """
    primary = members[0].vocabulary
    # The primary's tokens decide the cuts, so that a run with one model cuts as lm-eval does.
    tokens = primary.continue_ids(primary.opening(text).encode())
    length = min(member.context or _UNLIMITED for member in members)
    while True:
        passages = [_passage(members, before, after) for before, after in _cut(tokens, length)]
        if all(passages):
            return [passage for passage in passages if passage is not None]
        if length == 1:
            raise InputError("lm-eval: the members' contexts have no room for one token of the primary")
        # Another member needs more tokens than the primary for the same text, so all windows become shorter.
        length = max(1, length * 3 // 4)


def _cut(tokens: Sequence[int], length: int) -> Iterator[tuple[list[int], list[int]]]:
    """For each window, the tokens before it and its own tokens."""
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    return map(make_disjoint_window, get_rolling_token_windows(list(tokens), _START, length, context_len=1))


def _passage(members: Sequence[Member], before: Sequence[int], after: Sequence[int]) -> Passage | None:
    """A window; None where a member's context has no room for it."""
    primary = members[0].vocabulary
    before_bytes, own_bytes = (
        b"".join(primary.token_bytes(token) or b"" for token in part) for part in (before, after)
    )
    prompts = []
    for number, member in enumerate(members):
        prompt = (
            [] if before == [_START] else list(before) if number == 0 else member.vocabulary.continue_ids(before_bytes)
        )
        # For an encoder-decoder, `beginning` also has the encoder's row, which every prompt needs.
        if not prompt or member.seq2seq is not None:
            prompt = [*member.beginning(), *prompt]
        if number:
            room = len(member.vocabulary.continue_ids(own_bytes))
            if member.context is not None and room >= member.context:
                return None
            prompt = member.shorten(prompt, room)
        prompts.append(prompt)
    return Passage(prompts, after)
