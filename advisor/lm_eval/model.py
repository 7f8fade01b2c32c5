"""``UniteLM``: what lm-eval asks of a model, answered by an ensemble."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.model import LM
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from advisor.checks import check_seed
from advisor.lm_eval.arguments import chosen
from advisor.lm_eval.requests import Context, Conversation, parted, settings_of, without_system
from advisor.lm_eval.windows import windows
from advisor.profile.loader import FreshLoader, hush
from ensemble.api import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, MemberError
from ensemble.files import default_cache_dir
from ensemble.score.choices import ChoiceQuestion

_LOG = logging.getLogger("lm_eval.models.unite")
"""lm-eval shows what is said below its own name."""
_ROWS = 64
"""Rows at a time at the most with ``--batch_size auto``."""
_LM_EVALS_DEVICE = "cuda:0"
"""What lm-eval says where nobody says anything, whether there is such a device or not."""
Prompt = list[list[int]]


class UniteLM(LM):  # type: ignore[misc]  # lm-eval ships no types; it takes only what inherits from its class
    """An ensemble as lm-eval's model.

    Args:
        run: A run folder, whose chosen set is taken as it was run.
        models: In its place folders or hub ids, the primary first, as a list or with ``+`` between them.
        dtype: In place of the run's, or of the models' own.
        device: In place of the run's: one for all, or one for each as a list or with ``+`` between them.
        chat_template: ``never`` leaves it to ``--apply_chat_template``; ``auto`` and ``always`` put each text into
            every member's own, as a message of the user.
        max_gen_toks: Tokens after which a text is cut off where the task does not say so.
        seed: Of draws where the task does not say so.
        batch_size: Rows at a time; ``auto`` for as many as there is room for.
        max_batch_size: At the most, with ``auto``.
        options: ``method``, ``k``, ``weights``, and the method's own settings.

    Raises:
        InputError: Something of it cannot be used.
        MemberError: A model failed while it was loaded.
    """

    def __init__(  # noqa: PLR0913  # lm-eval gives what stands in --model_args, by name
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
        **options: Any,
    ) -> None:
        super().__init__()
        self.max_gen_toks = _number("max_gen_toks", max_gen_toks)
        self.seed = _number("seed", seed)
        check_seed(self.seed)
        self._rows = None if str(batch_size).split(":")[0] == "auto" else _number("batch_size", batch_size)
        if self._rows is not None and self._rows < 1:
            raise InputError(f"--batch_size {batch_size}: give a number of at least 1, or auto")
        self._most = _ROWS if max_batch_size is None else _number("max_batch_size", max_batch_size)
        self.loaded = chosen(run, models, device=device, dtype=dtype, chat_template=chat_template, given=options)
        hush()
        self.ensemble: Ensemble = FreshLoader(default_cache_dir())(self.loaded.models, self.loaded.decoding)
        self._device = self.ensemble.members[0].device
        self._said: set[str] = set()
        for member in self.ensemble.members:
            if reason := member.local.recompute_reason:
                self._say(f"{member.name}: {reason}, so it is read anew at each step; that is slow")

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> UniteLM:
        """Make it of ``--model_args`` and lm-eval's other options; the former count where both say something."""
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if given.get("device") == _LM_EVALS_DEVICE:
            del given["device"]
        return cls(**{**given, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> UniteLM:
        """The same where ``--model_args`` is a text still."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The log-probability of each continuation behind its context, and whether greedy decoding would write it."""
        asked: dict[Context, list[int]] = {}
        parts = [parted(*request.args[:2]) for request in requests]
        for n, (context, continuation) in enumerate(parts):
            asked.setdefault(context, []).append(n)
            if not context:
                parts[n] = context, self.ensemble.members[0].vocabulary.opening(continuation)
        questions: list[tuple[list[int], ChoiceQuestion]] = []
        for context, numbers in asked.items():
            questions += self._questions(self._read(context), numbers, [parts[n][1] for n in numbers])
        longest = max((max(map(len, question.prompts)) + question.longest() for _, question in questions), default=0)
        found: list[tuple[float, bool]] = [(math.nan, False)] * len(requests)
        scored = self.ensemble.score_each([question for _, question in questions], self._batch(longest), greedy=True)
        with tqdm(total=len(requests), desc="Running loglikelihood requests", disable=disable_tqdm) as bar:
            for place, scores in scored:
                for n, score in zip(questions[place][0], scores, strict=True):
                    found[n] = _checked(score.value), bool(score.greedy)
                    self.cache_hook.add_partial("loglikelihood", requests[n].args, found[n])
                    bar.update()
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text from its first token on; see :mod:`advisor.lm_eval.windows`."""
        members = self.ensemble.members
        passages = [(n, window) for n, request in enumerate(requests) for window in windows(members, request.args[0])]
        waiting = Counter(n for n, _ in passages)
        found = [0.0] * len(requests)
        longest = max((max(map(len, one.prompts)) + len(one.tokens) for _, one in passages), default=0)
        scored = self.ensemble.score_passages([passage for _, passage in passages], self._batch(longest))
        with tqdm(total=len(passages), desc="Running loglikelihood_rolling requests", disable=disable_tqdm) as bar:
            for place, value in scored:
                n = passages[place][0]
                found[n] += _checked(value)
                waiting[n] -= 1
                if not waiting[n]:
                    self.cache_hook.add_partial("loglikelihood_rolling", requests[n].args, found[n])
                bar.update()
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The text that the ensemble writes behind each context, cut before the first of the strings in ``until``."""
        alike: dict[Settings, list[int]] = {}
        for n, request in enumerate(requests):
            alike.setdefault(settings_of(request.args[1], self.max_gen_toks, self.seed), []).append(n)
        prompts = {n: self._shortened(requests[n].args[0], how) for how, numbers in alike.items() for n in numbers}
        found = [""] * len(requests)
        with tqdm(total=len(requests), desc="Running generate_until requests", disable=disable_tqdm) as bar:
            for settings, numbers in alike.items():
                longest = max(max(map(len, prompts[n])) for n in numbers) + settings.max_new_tokens
                batch = Batch(self._batch(longest))
                for place, generation in self.ensemble.generate_each([prompts[n] for n in numbers], settings, batch):
                    n = numbers[place]
                    found[n] = generation.text
                    self.cache_hook.add_partial("generate_until", requests[n].args, found[n])
                    bar.update()
        return found

    def apply_chat_template(
        self,
        chat_history: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,  # noqa: ARG002  # false where the last message is the assistant's
    ) -> Conversation:
        """Messages, for every member's own template; where the last one is the assistant's, that is gone on with."""
        return Conversation(json.dumps([dict(message) for message in chat_history], ensure_ascii=False))

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The members' templates, for the record: the one that all have, or each with the member's name.

        Raises:
            InputError: A member has none, or one of several is asked for by name.
        """
        if not chat_template:
            return None
        if isinstance(chat_template, str):
            raise InputError(f"--apply_chat_template {chat_template}: each member's own template is used; give no name")
        own = {}
        for member in self.ensemble.members:
            if not member.tokenizer.chat_template:
                raise InputError(f"--apply_chat_template: {member.name} has no chat template; leave it out")
            own[member.name] = str(member.tokenizer.chat_template)
        return next(iter(own.values())) if len(set(own.values())) == 1 else json.dumps(own)

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's cache of requests, which hold conversations here, the same ones for every tokenizer."""
        return "unite"

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into its results of the model."""
        decoding = self.loaded.decoding
        members = [
            {
                "name": model.name,
                "path_or_id": model.checkpoint.location,
                "revision": model.checkpoint.revision,
                "dtype": str(member.local.model.dtype).removeprefix("torch."),
                "device": str(member.device),
            }
            for model, member in zip(self.loaded.models, self.ensemble.members, strict=True)
        ]
        return {"members": members, **decoding.key()}

    def _questions(
        self, prompt: Prompt, numbers: list[int], texts: list[str]
    ) -> list[tuple[list[int], ChoiceQuestion]]:
        """A context's continuations as one question; where it is too long for that, as one each."""
        question = self.ensemble.options_behind(prompt, texts, shorten=True)
        if self._cut(prompt, question.prompts) and len(texts) > 1:
            return [
                part for n, text in zip(numbers, texts, strict=True) for part in self._questions(prompt, [n], [text])
            ]
        return [(numbers, question)]

    def _shortened(self, context: Context, settings: Settings) -> Prompt:
        """A context that leaves room for what is to be written."""
        prompt = self._read(context)
        try:
            fitting = [
                member.shorten(ids, settings.max_new_tokens)
                for member, ids in zip(self.ensemble.members, prompt, strict=True)
            ]
        except InputError as error:
            raise InputError(f"{error}, as --gen_kwargs max_gen_toks=64 does") from None
        self._cut(prompt, fitting)
        return fitting

    def _cut(self, prompt: Prompt, fitting: Sequence[Sequence[int]]) -> bool:
        """Whether a prompt had to lose its beginning, which is said once for each member."""
        cut = [len(kept) < len(ids) for ids, kept in zip(prompt, fitting, strict=True)]
        for member, is_cut in zip(self.ensemble.members, cut, strict=True):
            if is_cut:
                self._say(
                    f"{member.name}: prompts that do not fit its context of {member.context} lose their beginning"
                )
        return any(cut)

    def _read(self, context: Context) -> Prompt:
        """A context's ids in every member."""
        members = self.ensemble.members
        if isinstance(context, str):
            return [member.prompt_ids(context) if context else member.beginning() for member in members]
        messages = context.messages
        try:
            return [member.prompt_ids(messages) for member in members]
        except InputError as error:
            plain = without_system(messages)
            if len(plain) == len(messages):
                raise
            self._say(f"{error}; system messages are left out")
            return [member.prompt_ids(plain) for member in members]

    def _batch(self, tokens: int) -> int:
        """Rows at a time, when the longest has so many tokens."""
        if self._rows is not None:
            return self._rows
        return max(1, min(self._most, self.ensemble.most_rows(max(tokens, 1)) or self._most))

    def _say(self, line: str) -> None:
        """Say something once."""
        if line not in self._said:
            self._said.add(line)
            _LOG.warning(line)


def _number(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise InputError(f"--model_args {name}={value}: give a whole number") from None


def _checked(value: float) -> float:
    if math.isnan(value):
        raise MemberError("lm-eval: a member's logits are not numbers (NaN)")
    return value
