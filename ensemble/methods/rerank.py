"""Reranking: a reward model reads every member's response, and the response with the highest reward is taken.

A reward model is a sequence classifier of transformers with one output, which reads the question and one response as a
pair of texts; or PairRM (Jiang et al., LLM-Blender, 2023) in the layout of ``llm-blender/PairRM-hf``. PairRM compares
two responses, and the reward of one is the sum of its leads over all others, each pair read in both orders. In the
texts a special token becomes a space. Only safetensors files are read, and no code that came with a model runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, DebertaV2Config, DebertaV2Model
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2PreTrainedModel

from ensemble.common.text import without_tokens
from ensemble.errors import InputError, MemberError
from ensemble.methods import Method
from ensemble.methods._response import ResponseMethod
from ensemble.models.load import load_helper

METHOD = Method(
    level="response",
    summary="the response with the highest reward from a reward model (PairRM, or a sequence classifier)",
    when="free text with many correct wordings, when you have a reward model for this kind of text",
)
_MARKS = ("<|source|>", "<|candidate1|>", "<|candidate2|>")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the reranker.

    Attributes:
        reward_model: A folder, or an id on the hub.
        device: ``auto``, ``cpu``, ``cuda``, ...
    """

    reward_model: str | None = None
    device: str = "auto"


class PairRm(DebertaV2PreTrainedModel):
    """PairRM's network: a DeBERTa, and a head that reads the states at the marks."""

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.pretrained_model = DebertaV2Model(config)
        # The dropouts do nothing here, but count: the published names of the weights have the layers' numbers.
        layers = nn.Dropout(), nn.Linear(2 * size, size), nn.Tanh(), nn.Dropout(), nn.Linear(size, config.n_tasks)
        self.head_layer = nn.Sequential(*layers)
        self.post_init()  # type: ignore[no-untyped-call]

    def lead(self, ids: list[int], marks: Sequence[int]) -> float:
        """How much better the first response is, from the ids of all texts and those of their marks."""
        states = self.pretrained_model(input_ids=torch.tensor([ids], device=self.device)).last_hidden_state[0]
        source, first, second = (states[ids.index(mark)] for mark in marks)
        leads = self.head_layer(torch.cat([source, first])) - self.head_layer(torch.cat([source, second]))
        return float(leads.mean())


class RewardModel:
    """A reward model in a folder or on the hub, as a method that chooses."""

    def __init__(self, place: str, device: str) -> None:
        self._place = place
        kinds = {"": AutoModelForSequenceClassification, "DebertaV2PairRM": PairRm}
        self._model, self._tokenizer = load_helper(place, kinds, device)
        if not isinstance(self._model, PairRm) and self._model.num_labels != 1:
            raise InputError(f"it has {self._model.num_labels} outputs, and not one", of=place)

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        rewards = self.rewards(prompt, texts)
        return rewards.index(max(rewards))

    @torch.inference_mode()
    def rewards(self, prompt: str, texts: Sequence[str]) -> list[float]:
        """The reward of each response to a question; a higher one is better."""
        special = [*self._tokenizer.all_special_tokens, *_MARKS]
        question, *plain = (without_tokens(text, special) for text in (prompt, *texts))
        compares = isinstance(self._model, PairRm)
        rewards = self._leads(question, plain) if compares else [self._reward(question, text) for text in plain]
        if any(map(math.isnan, rewards)):
            raise MemberError("its outputs are not numbers (NaN); name another model", of=self._place)
        return rewards

    def _reward(self, question: str, text: str) -> float:
        # In lists, because transformers drops an empty second text that is no list.
        pair = self._tokenizer([question], [text], truncation="longest_first", return_tensors="pt")
        return float(self._model(**pair.to(self._model.device)).logits)

    def _leads(self, question: str, texts: Sequence[str]) -> list[float]:
        cut, marks = partial(self._tokenizer.encode, truncation=True), self._tokenizer.convert_tokens_to_ids([*_MARKS])
        source = cut(_MARKS[0] + question, max_length=1224)
        # A short question leaves more tokens for the responses.
        room = (2048 - len(source)) // 2
        lead = {}
        for one, other in permutations(dict.fromkeys(texts), 2):
            both = cut(_MARKS[1] + one, max_length=room) + cut(_MARKS[2] + other, max_length=room)
            lead[one, other] = self._model.lead(source + both, marks)
        # Rounded, so that the order of the additions does not decide a tie.
        return [round(sum(lead[own, each] - lead[each, own] for each in texts if each != own), 6) for own in texts]


def make(options: Options) -> ResponseMethod:
    """Load the reward model; the method learns nothing."""
    if not options.reward_model:
        raise InputError("it needs a reward model; name one with reward_model=FOLDER_OR_ID", of="method rerank")
    return RewardModel(options.reward_model, options.device)
