"""Fusion: a sequence-to-sequence model reads the best responses, and writes a new one (GenFuser of LLM-Blender).

It reads the published form of ``llm-blender/gen_fuser_3b`` (Jiang et al., 2023): the question and three responses, each
cut to 128 tokens. It writes at most 128 by a beam search with 4 beams. With a reward model the best three responses are
fused, which with PairRM is LLM-Blender as a whole; else those of the first three members. Unlike in the authors' code,
an input of more than 1,024 tokens loses the beginning of the question, and a special token in a text becomes a space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from transformers import AutoModelForSeq2SeqLM

from ensemble.common.text import without_tokens
from ensemble.errors import InputError
from ensemble.methods import Method, rerank
from ensemble.methods._response import ResponseMethod
from ensemble.models.load import load_helper

METHOD = Method(
    level="response",
    summary="a new response that a sequence-to-sequence model writes from the best three (GenFuser, LLM-Blender)",
    when="open questions with long answers, when you have a model that is trained to fuse responses",
)
_TOP, _TOKENS, _BEAMS, _INPUT = 3, 128, 4, 1024


@dataclass(frozen=True, slots=True)
class Options(rerank.Options):
    """Options of the fusion: those of ``rerank``, whose model ranks the responses first, and the model that writes.

    Attributes:
        model: The sequence-to-sequence model: a folder, or an id on the hub.
    """

    model: str | None = None


class Fuser:
    """A model that fuses responses, after a reward model has ranked them, if there is one."""

    def __init__(self, model: str, reward_model: str | None, device: str) -> None:
        self._ranker = None if reward_model is None else rerank.RewardModel(reward_model, device)
        self._model, self._tokenizer = load_helper(model, {"": AutoModelForSeq2SeqLM}, device)
        self._ids = partial(self._tokenizer.encode, add_special_tokens=False)
        self._most = min(_INPUT, getattr(self._model.config, "max_position_embeddings", _INPUT))

    @torch.inference_mode()
    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> str:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        rewards = [0.0] * len(texts) if self._ranker is None else self._ranker.rewards(prompt, texts)
        # The sort is stable: of equal rewards, and without a ranker, the earlier members come first.
        best = [self._cut(texts[n]) for n in sorted(range(len(texts)), key=lambda n: -rewards[n])[:_TOP]]
        question = self._plain(prompt)
        while (over := len(ids := self._ids(_form(question, best))) - self._most) > 0 and question:
            question = self._tokenizer.decode(self._ids(question)[over:])
        read = torch.tensor([ids[: self._most]], device=self._model.device)
        written = self._model.generate(input_ids=read, max_new_tokens=_TOKENS, num_beams=_BEAMS, do_sample=False)
        return str(self._tokenizer.decode(written[0], skip_special_tokens=True))

    def _cut(self, text: str) -> str:
        ids = self._ids(self._plain(text))
        return self._plain(text) if len(ids) <= _TOKENS else f"{self._tokenizer.decode(ids[:_TOKENS])}..."

    def _plain(self, text: str) -> str:
        return without_tokens(text, self._tokenizer.all_special_tokens)


def _form(question: str, texts: Sequence[str]) -> str:
    candidates = [f"Candidate {n}: <extra_id_{n}>:{text}" for n, text in enumerate(texts)]
    request = "Summarize candidates into a better one for the given instruction:"
    return "</s>".join(["Instruction: ", f"Input: {question}", *candidates, request])


def make(options: Options) -> ResponseMethod:
    """Load the models; the method learns nothing."""
    if options.model is None:
        raise InputError("it needs a model that fuses responses; name one with model=FOLDER_OR_ID", of="method fuse")
    return Fuser(options.model, options.reward_model, options.device)
