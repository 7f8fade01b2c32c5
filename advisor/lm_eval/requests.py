"""What lm-eval asks for, in this project's terms: contexts, continuations, ways to generate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ensemble.decode.settings import Settings
from ensemble.errors import InputError

NEUTRAL: Mapping[str, float] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_new_tokens": 0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
}
"""Ways to generate that the ensemble has not, and the value with which they change nothing."""
_OF_DRAWS = ("top_k", "top_p", "min_p", "typical_p", "temperature")
"""What plays no part in greedy decoding."""
_IRRELEVANT = ("do_sample", "use_cache")


class Conversation(NamedTuple):
    """Messages in place of a text: every member reads them by its own chat template.

    lm-eval asks for the text that a chat template makes of messages, and members have templates of their own. So the
    messages go through lm-eval as JSON, as they do for its models behind a server.

    Attributes:
        json: A list of messages with a ``role`` and a ``content``.
    """

    json: str

    def encode(self, encoding: str) -> bytes:
        """The JSON as bytes: lm-eval hashes what it asks for."""
        return self.json.encode(encoding)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages."""
        found: list[dict[str, str]] = json.loads(self.json)
        return found


Context = str | Conversation


def parted(context: Context, continuation: str) -> tuple[Context, str]:
    """A context and what is to be scored behind it, as lm-eval's own backends part them.

    White space at a context's end becomes the continuation's beginning: tokenizers put it into the token of the word.
    A continuation of nothing is a text of its own.
    """
    if isinstance(context, Conversation):
        return context, continuation
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def settings_of(asked: Mapping[str, Any], tokens: int, seed: int) -> Settings:
    """How to generate, from a task's ``generation_kwargs`` and ``--gen_kwargs``.

    Args:
        asked: As lm-eval gives them.
        tokens: Where a text is cut off, unless they say so.
        seed: Of draws, unless they say so.

    Raises:
        InputError: The ensemble cannot do something of it.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    # It fills in only what is not None.
    read = normalize_gen_kwargs({name: value for name, value in asked.items() if value is not None}, tokens)
    stop = tuple(dict.fromkeys(str(one) for one in read.pop("until") if one))
    limit = int(read.pop("max_gen_toks"))
    draws = bool(read.get("do_sample"))
    # transformers' own where draws are asked for and nothing else is said.
    temperature = float(read.get("temperature", 1.0)) if draws else 0.0
    if not temperature:
        read = {name: value for name, value in read.items() if name not in _OF_DRAWS}
    top_p = float(read.pop("top_p", 1.0))
    seed = int(read.pop("seed", seed))
    read.pop("temperature", None)
    for name, value in read.items():
        if name not in _IRRELEVANT and (name not in NEUTRAL or value != NEUTRAL[name]):
            way_out = (
                f"--gen_kwargs {name}={NEUTRAL[name]} turns it off" if name in NEUTRAL else "take it out of the task"
            )
            raise InputError(f"generation_kwargs {name}={value}: an ensemble has no such way to generate; {way_out}")
    return Settings(limit, stop, temperature, top_p, seed)


def without_system(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """A conversation without its system messages, which some chat templates refuse."""
    return [dict(message) for message in messages if message["role"] != "system"]
