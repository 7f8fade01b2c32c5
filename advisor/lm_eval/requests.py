"""lm-eval's arguments and requests in this project's terms: models, contexts, continuations, generation settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from advisor.models.fit import check_set
from advisor.models.run_config import check_decodes
from advisor.options.shared import InferenceOptions, WeightOptions
from advisor.run.plan import chosen_by_folder, chosen_by_hand
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.methods import make_options, option_fields
from ensemble.models.choices import ChatTemplate
from ensemble.models.member import Member
from ensemble.models.spec import THINK, EnsembleSpec, ModelSpec
from ensemble.score import Passage

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
    """Move white space from the end of the context to the start of its continuation, as lm-eval's own backends do."""
    if isinstance(context, Conversation):
        return context, continuation
    # Tokenizers put a space into the token of the word after it.
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def settings_of(generation_kwargs: Mapping[str, Any], max_tokens: int, seed: int) -> Settings:
    """The settings in a task's ``generation_kwargs`` and ``--gen_kwargs``."""
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


_UNLIMITED = 2048
"""Tokens of a window for models without a context limit, as in lm-eval."""
_START = -1
"""Placeholder for the token before a text, which differs between members; not a token id."""


def windows(members: Sequence[Member], text: str) -> list[Passage]:
    """A text as passages, each with the prompts before it."""
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


NAMES = ("run", "models", "method", "k", "weights", "dtype", "device", "chat_template", "max_gen_toks", "seed")
"""The model's own arguments; the method's settings come in addition."""
_EXAMPLE = "--model_args run=runs/demo, or models=FOLDER+FOLDER"


def chosen(run: object, models: object, *, device: object, dtype: object, chat_template: object) -> EnsembleSpec:
    """The models of a run folder, or some given by hand, as lists or texts with ``+``; None for what the run has."""
    if (run is None) == (models is None):
        raise InputError(f"lm-eval: the model needs either a run folder or models; give {_EXAMPLE}")
    found = chosen_by_hand(_listed("models", models)) if run is None else chosen_by_folder(Path(str(run)))
    # A run folder may come from other people, and the harness has no option for the user's consent to its servers.
    if remote := next((each.name for each in found.members if each.is_remote), None):
        raise InputError(f"lm-eval: {remote} is behind a server; the models of the harness are loaded in this process")
    template = cast("ChatTemplate", str(chat_template))
    InferenceOptions(dtype="auto" if dtype is None else str(dtype), chat_template=template)  # checks the values
    found = found.with_loading(dtype=None if dtype is None else str(dtype), chat_template=template)
    members = _placed(found.members, device)
    check_set(members)
    return dataclasses.replace(found, members=members)


def _listed(name: str, value: object) -> list[str]:
    """The entries of a list, or of a text with ``+`` between them."""
    parts = [str(part) for part in value] if isinstance(value, (list, tuple)) else str(value).split("+")
    if not parts or not all(parts):
        raise InputError(f"--model_args {name}={value}: an entry is empty; write one + between two entries")
    return parts


def _placed(models: Sequence[ModelSpec], device: object) -> tuple[ModelSpec, ...]:
    """The models where they are to be loaded."""
    if device is None:
        return tuple(models)
    places = _listed("device", device)
    if len(places) == 1:
        places *= len(models)
    if len(places) != len(models):
        raise InputError(
            f"--model_args device={device}: {len(places)} devices for {len(models)} models; give one device for each"
        )
    return tuple(dataclasses.replace(model, device=place) for model, place in zip(models, places, strict=True))


def decoded(
    found: EnsembleSpec, method: object, k: object, weights: object, settings: Mapping[str, object]
) -> EnsembleSpec:
    """A set with the method, its k, its weights and its own settings of ``--model_args``; None for what the set has."""
    method, k = found.method if method is None else str(method), found.k if k is None else k
    # lm-eval turns the text of --model_args into numbers where it can; what is still a text is no number.
    if not isinstance(k, int):
        raise InputError(f"--model_args k={k}: must be a number of candidates")
    check_decodes(method)
    WeightOptions(k=k)  # checks the range
    known = [*(field.name for field in option_fields(method)), THINK]
    for unknown in settings.keys() - set(known):
        of_method = f"; method={method} also has {', '.join(known)}" if known else ""
        raise InputError(f"--model_args: unknown argument '{unknown}'; use one of {', '.join(NAMES)}{of_method}")
    if method == found.method:
        # What the run or the saved ensemble has, where nothing else is given.
        settings, weights = {**found.options, **settings}, found.weights if weights is None else weights
    make_options(method, settings)
    # One alone writes as itself, and its probabilities are those of its whole vocabulary.
    if len(found.members) == 1:
        return EnsembleSpec(found.members, "average", 1)
    options = settings if weights is None else {"weights": weights, **settings}
    return EnsembleSpec(found.members, method, k, options=options)
