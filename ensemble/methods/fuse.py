"""Fusion: a sequence-to-sequence model reads the best responses, and writes a new one (GenFuser of LLM-Blender).

The model reads, with the separator ``</s>`` between the parts: ``Instruction: `` and nothing, ``Input: question``,
``Candidate 0: <extra_id_0>:response`` and so on, and the request to summarize the candidates into a better one. This
is the form of ``llm-blender/gen_fuser_3b`` (Jiang et al., 2023). As there, a response is cut to 128 tokens, the fused
one has at most 128, and it is found by a beam search with 4 beams.

With a reward model the best three responses are fused, which with PairRM is LLM-Blender as a whole: PairRanker, then
GenFuser. Without one the first three members' responses are fused, the primary's first.

Two things differ from the authors' code. It cuts an input that is longer than 1,024 tokens at its end, where the
candidates are; here the question loses its beginning. And a special token in a text becomes a space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForSeq2SeqLM

from ensemble.common.text import without_tokens
from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._response import ResponseMethod
from ensemble.methods._reward_models import (
    Kind,
    RewardModel,
    check_ids,
    checked,
    load_pretrained,
    load_reward_model,
    positions,
    running,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

METHOD = Method(
    level="response",
    summary="a new response that a sequence-to-sequence model writes from the best three (GenFuser, LLM-Blender)",
    when="open questions with long answers, when you have a model that is trained to fuse responses",
)
_INPUT = 1024
"""The most tokens of an input, as published; a model with fewer positions reads fewer."""
_REQUEST = "Summarize candidates into a better one for the given instruction:"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the fusion.

    Attributes:
        model: The sequence-to-sequence model: a folder, or an id on the hub.
        reward_model: The model that ranks the responses first; see the options of ``rerank``.
        kind: How it reads them; see the options of ``rerank``.
        top: How many of the best responses are fused, at least 1.
        max_tokens: The most tokens of a response that are read, and the most that are written, at least 1.
        beams: Beams of the search; 1 is greedy.
        device: ``auto``, ``cpu``, ``cuda``, ...
    """

    model: str | None = None
    reward_model: str | None = None
    kind: Kind = "pointwise"
    top: int = 3
    max_tokens: int = 128
    beams: int = 4
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.kind not in ("pointwise", "pairwise"):
            raise InputError(f"kind {self.kind!r}: not one of pointwise, pairwise")
        for name, value in (("top", self.top), ("max_tokens", self.max_tokens), ("beams", self.beams)):
            if type(value) is not int or value < 1:
                raise InputError(f"{name} {value!r}: give a whole number, at least 1")

    @property
    def models(self) -> tuple[str, ...]:
        """The folders or ids of the models."""
        return tuple(str(name) for name in (self.model, self.reward_model) if name)


class Fuser:
    """A model that fuses responses.

    Args:
        model: A sequence-to-sequence model.
        tokenizer: Its tokenizer.
        ranker: Ranks the responses first; None to fuse the first ones.
        options: How many responses are fused, and how the new one is written.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        ranker: RewardModel | None,
        options: Options,
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._ranker, self._options = ranker, options
        self._positions = positions(model)
        self._most = min(_INPUT, self._positions)

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> str:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        rewards = [0.0] * len(texts) if self._ranker is None else self._ranker.rewards(prompt, texts)
        # The sort is stable: of equal rewards, and without a ranker, the earlier members come first.
        best = sorted(range(len(texts)), key=lambda n: -rewards[n])[: self._options.top]
        with running("fuse", str(self._options.model)):
            return self._written(self._ids(prompt, [texts[n] for n in best]))

    def _written(self, read: Sequence[int]) -> str:
        ids = torch.tensor([read])
        check_ids(self._model, ids)
        with torch.inference_mode():
            written = self._model.generate(
                input_ids=ids.to(self._model.device),
                attention_mask=torch.ones_like(ids).to(self._model.device),
                # What is written needs positions, too.
                max_new_tokens=min(self._options.max_tokens, self._positions),
                num_beams=self._options.beams,
                do_sample=False,
            )
        return str(self._tokenizer.decode(written[0], skip_special_tokens=True))

    def _ids(self, prompt: str, texts: Sequence[str]) -> list[int]:
        """The ids of the input; a question that leaves too little room for the responses loses its beginning."""
        question = self._plain(prompt)
        ids = self._input(question, texts)
        while (over := len(ids) - self._most) > 0 and question:
            # Again, because the rest of a text can have other tokens than the end of the whole.
            question = self._decoded(self._encoded(question)[over:])
            ids = self._input(question, texts)
        return ids[: self._most]

    def _input(self, question: str, texts: Sequence[str]) -> list[int]:
        candidates = [f"Candidate {n}: <extra_id_{n}>:{self._cut(text)}" for n, text in enumerate(texts)]
        return self._encoded("</s>".join(["Instruction: ", f"Input: {question}", *candidates, _REQUEST]))

    def _cut(self, text: str) -> str:
        ids = self._encoded(self._plain(text))
        most = self._options.max_tokens
        return self._plain(text) if len(ids) <= most else f"{self._decoded(ids[:most])}..."

    def _plain(self, text: str) -> str:
        return without_tokens(text, self._tokenizer.all_special_tokens)

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _decoded(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids))


def make(prompts: Sequence[str], scores: Sequence[Sequence[float]], options: Options) -> ResponseMethod:  # noqa: ARG001
    """Load the models; the method learns nothing.

    Raises:
        InputError: No model is given, or one cannot be used.
        MemberError: The weights of one are damaged.
    """
    if options.model is None:
        raise InputError("it needs a model that fuses responses; name one with model=FOLDER_OR_ID", of="method fuse")
    wanted = "a sequence-to-sequence model"
    model, tokenizer = load_pretrained(
        "fuse", checked(options.model), AutoModelForSeq2SeqLM, None, wanted, options.device
    )
    ranker = None
    if options.reward_model is not None:
        ranker = load_reward_model("fuse", options.reward_model, options.kind, options.device)
    return Fuser(model, tokenizer, ranker, options)
