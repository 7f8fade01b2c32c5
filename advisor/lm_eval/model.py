"""``UniteLM``: an ensemble as a model of lm-eval, whose arguments and requests become those of this project."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from lm_eval.api.model import LM
from tqdm import tqdm

from advisor.models.fit import check_set
from advisor.models.loaded_models import load_ensemble, silence_libraries
from advisor.models.run_config import check_decodes
from advisor.options.shared import InferenceOptions, SeedOptions, WeightOptions
from advisor.run.plan import chosen_by_folder, chosen_by_hand
from ensemble.api import Ensemble
from ensemble.common.files import default_cache_dir
from ensemble.common.garbage import keep_present
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, MemberError
from ensemble.methods import make_options, option_fields
from ensemble.models.choices import ChatTemplate
from ensemble.models.member import Member
from ensemble.models.spec import THINK, EnsembleSpec, ModelSpec
from ensemble.score import ChoiceQuestion, Passage

T = TypeVar("T")
_LOG = logging.getLogger("lm_eval.models.unite")
"""A name below lm-eval's own logger, so that lm-eval shows the messages."""
_MAX_ROWS = 64
"""Most rows at a time with ``--batch_size auto``."""
_DEFAULT_DEVICE = "cuda:0"
"""The device that lm-eval gives where the user names none, even on a machine without CUDA."""
PromptIds = list[list[int]]
"""A prompt's ids in each member."""
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


class UniteLM(LM):  # type: ignore[misc]  # lm-eval ships no types; it takes only what inherits from its class
    """An ensemble as lm-eval's model.

    Args:
        run: A run folder; its chosen set is loaded as it was run.
        models: Folders or hub ids, the primary first, as a list or with ``+`` between them; either these or a run.
        dtype: Replaces the run's, or that of the stored weights.
        device: Replaces the run's: one for all models, or one for each as a list or with ``+`` between them.
        chat_template: ``never`` leaves templates to ``--apply_chat_template``; ``auto`` and ``always`` put each text
            into every member's own template, as a message of the user.
        max_gen_toks: Longest text where the task does not say, in tokens.
        seed: Seed of random draws where the task does not say.
        batch_size: Rows at a time; ``auto`` for as many as fit into memory.
        max_batch_size: Most rows at a time with ``auto``.
        method: How the models decode; that of the run if it is not given.
        k: Candidate tokens of each member in a step; those of the run if they are not given.
        weights: The members' weights; those of the run if they are not given.
        settings: The method's own settings.
    """

    def __init__(  # noqa: PLR0913  # lm-eval passes --model_args by name
        self,
        run: str | None = None,
        models: str | Sequence[str] | None = None,
        *,
        dtype: str | None = None,
        device: str | Sequence[str] | None = None,
        chat_template: str = "never",
        max_gen_toks: int = 256,
        seed: int = 0,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        method: str | None = None,
        k: int | None = None,
        weights: object = None,
        **settings: object,
    ) -> None:
        super().__init__()
        self.max_gen_toks = _whole("max_gen_toks", max_gen_toks)
        self.seed = _whole("seed", seed)
        SeedOptions(seed=self.seed)  # checks the range
        self._rows = None if str(batch_size).split(":")[0] == "auto" else _whole("batch_size", batch_size)
        if self._rows is not None and self._rows < 1:
            raise InputError(f"--batch_size {batch_size}: must be a number of at least 1, or auto")
        self._max_rows = _MAX_ROWS if max_batch_size is None else _whole("max_batch_size", max_batch_size)
        found = chosen(run, models, device=device, dtype=dtype, chat_template=chat_template)
        self.loaded = decoded(found, method, k, weights, settings)
        silence_libraries()
        self.ensemble: Ensemble = load_ensemble(self.loaded, default_cache_dir())
        keep_present()
        self._device = self.ensemble.members[0].device
        self._warned: set[str] = set()
        for member in self.ensemble.members:
            if reason := member.local.recompute_reason:
                self._warn(f"{member.name}: {reason}, so each step reads the whole text again, which is slow")

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> UniteLM:
        """Create the model of ``--model_args`` and lm-eval's other options; the former have priority."""
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if given.get("device") == _DEFAULT_DEVICE:
            del given["device"]
        return cls(**{**given, **arg_dict})

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, minus infinity for NaN, and whether greedy decoding would write it."""
        # Continuations of the same context are scored together, so that the context is read once.
        by_context: dict[Context, list[int]] = {}
        parts = [split_space(*request.args[:2]) for request in requests]
        for n, (context, continuation) in enumerate(parts):
            by_context.setdefault(context, []).append(n)
            # Without a context, the text opens the row, and its first token may be written in another way.
            if not context:
                parts[n] = context, self.ensemble.members[0].vocabulary.opening(continuation)
        questions: list[tuple[list[int], ChoiceQuestion]] = []
        for context, numbers in by_context.items():
            questions += self._questions(self._read(context), numbers, [parts[n][1] for n in numbers])
        longest = max((max(map(len, question.prompts)) + question.longest() for _, question in questions), default=0)
        results: list[tuple[float, bool]] = [(-math.inf, False)] * len(requests)
        scored = self.ensemble.score_each([question for _, question in questions], self._batch(longest), greedy=True)
        with tqdm(total=len(requests), desc="Running loglikelihood requests", disable=disable_tqdm) as bar:
            for place, scores in self._surviving(scored):
                for n, score in zip(questions[place][0], scores, strict=True):
                    results[n] = score.value, bool(score.greedy)
                    self.cache_hook.add_partial("loglikelihood", requests[n].args, results[n])
                    bar.update()
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each text from its first token on; minus infinity where a member's logits are NaN."""
        members = self.ensemble.members
        passages = [(n, window) for n, request in enumerate(requests) for window in windows(members, request.args[0])]
        # A text's result is complete, and may be cached, only after its last window.
        waiting = Counter(n for n, _ in passages)
        results = [0.0] * len(requests)
        longest = max((max(map(len, window.prompts)) + len(window.tokens) for _, window in passages), default=0)
        scored = self.ensemble.score_passages([passage for _, passage in passages], self._batch(longest))
        with tqdm(total=len(passages), desc="Running loglikelihood_rolling requests", disable=disable_tqdm) as bar:
            for place, value in self._surviving(scored):
                n = passages[place][0]
                results[n] += value
                waiting[n] -= 1
                if not waiting[n]:
                    self.cache_hook.add_partial("loglikelihood_rolling", requests[n].args, results[n])
                bar.update()
        # A text with a window that has no value has none either.
        return [-math.inf if waiting[n] else result for n, result in enumerate(results)]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The text that the ensemble writes after each context; empty where a member's logits are NaN."""
        by_settings: dict[Settings, list[int]] = {}
        for n, request in enumerate(requests):
            by_settings.setdefault(settings_of(request.args[1], self.max_gen_toks, self.seed), []).append(n)
        prompts = {
            n: self._shortened(requests[n].args[0], settings)
            for settings, numbers in by_settings.items()
            for n in numbers
        }
        results = [""] * len(requests)
        with tqdm(total=len(requests), desc="Running generate_until requests", disable=disable_tqdm) as bar:
            for settings, numbers in by_settings.items():
                longest = max(max(map(len, prompts[n])) for n in numbers) + settings.max_new_tokens
                # A size for each group: one with short limits fits more rows.
                batch = Batch(self._batch(longest))
                written = self.ensemble.generate_each([prompts[n] for n in numbers], settings, batch)
                for place, generation in self._surviving(written):
                    n = numbers[place]
                    results[n] = generation.text
                    self.cache_hook.add_partial("generate_until", requests[n].args, results[n])
                    bar.update()
        return results

    def apply_chat_template(
        self,
        chat_history: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,  # noqa: ARG002  # members find out from the last role
    ) -> Conversation:
        """The messages, for every member's own template; a last message of the assistant is continued."""
        return Conversation(json.dumps([dict(message) for message in chat_history], ensure_ascii=False))

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The members' templates for lm-eval's results: the one that all share, or each with the member's name."""
        if not chat_template:
            return None
        if isinstance(chat_template, str):
            raise InputError(f"--apply_chat_template {chat_template}: each member's own template is used; give no name")
        templates = {}
        for member in self.ensemble.members:
            if not member.tokenizer.chat_template:
                raise InputError(f"--apply_chat_template: {member.name} has no chat template; leave it out")
            templates[member.name] = str(member.tokenizer.chat_template)
        return next(iter(templates.values())) if len(set(templates.values())) == 1 else json.dumps(templates)

    tokenizer_name = "unite"
    """The name in lm-eval's cache of requests, which holds conversations as JSON: the same for every tokenizer."""

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into its results of the model."""
        decoding = self.loaded
        members = [
            {
                "name": model.name,
                "path_or_id": model.weights.location,
                "revision": model.weights.revision,
                "dtype": str(member.local.model.dtype).removeprefix("torch."),
                "device": member.place,
            }
            for model, member in zip(self.loaded.members, self.ensemble.members, strict=True)
        ]
        return {"members": members, "method": decoding.method, "k": decoding.k, **decoding.options}

    def _questions(
        self, prompt: PromptIds, numbers: list[int], texts: list[str]
    ) -> list[tuple[list[int], ChoiceQuestion]]:
        """A context's continuations as one question; as one question each, where the context is too long for all."""
        question = self.ensemble.options_behind(prompt, texts, shorten=True)
        if self._warn_cut(prompt, question.prompts) and len(texts) > 1:
            return [
                part for n, text in zip(numbers, texts, strict=True) for part in self._questions(prompt, [n], [text])
            ]
        return [(numbers, question)]

    def _shortened(self, context: Context, settings: Settings) -> PromptIds:
        """A context that leaves room for the new tokens."""
        prompt = self._read(context)
        try:
            fitting = [
                member.shorten(ids, settings.max_new_tokens)
                for member, ids in zip(self.ensemble.members, prompt, strict=True)
            ]
        except InputError as error:
            raise InputError(f"{error}, for example with --gen_kwargs max_gen_toks=64") from None
        self._warn_cut(prompt, fitting)
        return fitting

    def _warn_cut(self, prompt: PromptIds, fitting: Sequence[Sequence[int]]) -> bool:
        """Whether a prompt lost its beginning; warns once for each member."""
        cut = [len(kept) < len(ids) for ids, kept in zip(prompt, fitting, strict=True)]
        for member, is_cut in zip(self.ensemble.members, cut, strict=True):
            if is_cut:
                self._warn(f"{member.name}: prompts longer than its context of {member.context} lose their beginning")
        return any(cut)

    def _read(self, context: Context) -> PromptIds:
        members = self.ensemble.members
        if isinstance(context, str):
            return [member.prompt_ids(context) if context else member.beginning() for member in members]
        messages = context.messages
        try:
            return [member.prompt_ids(messages) for member in members]
        except InputError as error:
            plain = [message for message in messages if message["role"] != "system"]
            if len(plain) == len(messages):
                raise
            self._warn(f"{error}; system messages are omitted")
            return [member.prompt_ids(plain) for member in members]

    def _batch(self, tokens: int) -> int:
        """The number of rows at a time, where the longest row has so many tokens."""
        if self._rows is not None:
            return self._rows
        return max(1, min(self._max_rows, self.ensemble.most_rows(max(tokens, 1)) or self._max_rows))

    def _surviving(self, results: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
        """Results as long as they come: an error after the last one becomes a warning."""
        any_result = False
        try:
            for result in results:
                any_result = True
                yield result
        except MemberError as error:
            # The other results took hours, and the ensemble raises only after it gave all of them.
            if not any_result:
                raise
            self._warn(f"{error}; lm-eval counts this as minus infinity, or as an empty text")

    def _warn(self, line: str) -> None:
        # Once for each line, not for each of thousands of requests.
        if line not in self._warned:
            self._warned.add(line)
            _LOG.warning(line)


def _whole(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise InputError(f"--model_args {name}={value}: must be a whole number") from None
