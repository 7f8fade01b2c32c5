"""``UniteLM``: an ensemble as a model of lm-eval."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from lm_eval.api.model import LM
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from advisor.lm_eval.requests import (
    Context,
    Conversation,
    chosen,
    decoded,
    settings_of,
    split_space,
    windows,
)
from advisor.models.loaded_models import load_ensemble, silence_libraries
from advisor.options.shared import SeedOptions
from ensemble.api import Ensemble
from ensemble.common.files import default_cache_dir
from ensemble.common.garbage import keep_present
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, MemberError
from ensemble.score import ChoiceQuestion

T = TypeVar("T")
_LOG = logging.getLogger("lm_eval.models.unite")
"""A name below lm-eval's own logger, so that lm-eval shows the messages."""
_MAX_ROWS = 64
"""Most rows at a time with ``--batch_size auto``."""
_DEFAULT_DEVICE = "cuda:0"
"""The device that lm-eval gives where the user names none, even on a machine without CUDA."""
PromptIds = list[list[int]]
"""A prompt's ids in each member."""


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
        self.max_gen_toks = _number("max_gen_toks", max_gen_toks)
        self.seed = _number("seed", seed)
        SeedOptions(seed=self.seed)  # checks the range
        self._rows = None if str(batch_size).split(":")[0] == "auto" else _number("batch_size", batch_size)
        if self._rows is not None and self._rows < 1:
            raise InputError(f"--batch_size {batch_size}: must be a number of at least 1, or auto")
        self._max_rows = _MAX_ROWS if max_batch_size is None else _number("max_batch_size", max_batch_size)
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

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> UniteLM:
        """The same, where ``--model_args`` is a text."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

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


def _number(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise InputError(f"--model_args {name}={value}: must be a whole number") from None
