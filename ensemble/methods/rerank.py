"""Reranking: a reward model reads every member's response, and the response with the highest reward is taken.

A reward model is a sequence classifier of transformers with one output, which reads the question and one response as a
pair of texts; or PairRM (Jiang et al., LLM-Blender, 2023) in the layout of ``llm-blender/PairRM-hf``. PairRM compares
two responses, and the reward of one is the sum of its leads over all others, each pair read in both orders. In the
texts a special token becomes a space. Only safetensors files are read, and no code that came with a model runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, DebertaV2Config, DebertaV2Model
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2PreTrainedModel

from ensemble.common.text import without_tokens
from ensemble.errors import InputError, MemberError, UniteError, first_line
from ensemble.methods import Method
from ensemble.methods._response import ResponseMethod
from ensemble.models.hub import check_on_hub
from ensemble.models.hub_request import pinned
from ensemble.models.load import parse_device
from ensemble.models.model_files import check_files, check_size, stored_weights
from ensemble.models.spec import Checkpoint

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

    @property
    def models(self) -> tuple[str, ...]:
        """The folders or ids of the models."""
        return (self.reward_model,) if self.reward_model else ()


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
    """A reward model, as a method that chooses; ``method`` is the one that asks it, for messages."""

    def __init__(self, method: str, place: str, device: str) -> None:
        self._method, self._place = method, place
        self._model, self._tokenizer = load_model(method, place, AutoModelForSequenceClassification, device)
        if not isinstance(self._model, PairRm) and self._model.num_labels != 1:
            raise InputError(f"{place} has {self._model.num_labels} outputs, and not one", of=f"method {method}")

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        rewards = self.rewards(prompt, texts)
        return rewards.index(max(rewards))

    @torch.inference_mode()
    def rewards(self, prompt: str, texts: Sequence[str]) -> list[float]:
        """The reward of each response to a question; a higher one is better."""
        with running(self._method, self._place):
            question, *plain = (
                without_tokens(text, [*self._tokenizer.all_special_tokens, *_MARKS]) for text in (prompt, *texts)
            )
            if isinstance(self._model, PairRm):
                rewards = self._sums_of_leads(question, plain)
            else:
                rewards = [self._reward(question, text) for text in plain]
            if any(map(math.isnan, rewards)):
                raise ValueError("the reward model's outputs are not numbers (NaN)")
            return rewards

    def _reward(self, question: str, text: str) -> float:
        # In lists, because transformers drops an empty second text that is no list.
        pair = self._tokenizer([question], [text], truncation="longest_first", return_tensors="pt")
        return float(self._model(**pair.to(self._model.device)).logits)

    def _sums_of_leads(self, question: str, texts: Sequence[str]) -> list[float]:
        source, marks = self._ids(_MARKS[0] + question, 1224), self._tokenizer.convert_tokens_to_ids(list(_MARKS))
        # A short question leaves more tokens for the responses.
        room = (2048 - len(source)) // 2
        lead = {}
        for one, other in permutations(dict.fromkeys(texts), 2):
            both = self._ids(_MARKS[1] + one, room) + self._ids(_MARKS[2] + other, room)
            lead[one, other] = self._model.lead(source + both, marks)
        # Rounded, so that the order of the additions does not decide a tie.
        return [round(sum(lead[own, each] - lead[each, own] for each in texts if each != own), 6) for own in texts]

    def _ids(self, text: str, length: int) -> list[int]:
        ids: list[int] = self._tokenizer(text, truncation=True, max_length=length)["input_ids"]
        return ids


@contextmanager
def running(method: str, place: str) -> Iterator[None]:
    """Turn each failure of a method's model into a MemberError of one line."""
    try:
        yield
    except Exception as error:  # tokenizers and networks of strangers raise errors of many kinds
        reason = f"{place} failed while it was run ({type(error).__name__}: {first_line(error)})"
        raise MemberError(f"{reason}; name another model", of=f"method {method}") from error


def load_model(method: str, place: str, kind: Any, device: str) -> tuple[Any, Any]:
    """A model of a class of transformers with all its weights, and its tokenizer; InputError if it is another model."""
    checkpoint = Checkpoint(place)
    if not checkpoint.is_local:
        check_on_hub(checkpoint)
    # The checks that members get: these files come from strangers, too.
    check_files(checkpoint)
    # Always said, because transformers asks on the terminal where trust_remote_code is missing, and runs code on a yes.
    options: dict[str, Any] = {**pinned(checkpoint).options, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(checkpoint.location, **options)
        is_pairrm = kind is AutoModelForSequenceClassification and "DebertaV2PairRM" in (config.architectures or ())
        if (stored := stored_weights(place, checkpoint)) is not None:
            make = PairRm if is_pairrm else partial(kind.from_config, trust_remote_code=False)
            check_size(place, config, lambda: make(config), stored[0])
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.location, config=config, **options)
        most = getattr(config, "max_position_embeddings", 2**20)
        tokenizer.model_max_length = min(tokenizer.model_max_length, most)
        options |= {"config": config, "use_safetensors": True, "output_loading_info": True}
        loader: Any = PairRm if is_pairrm else kind
        model, loaded = loader.from_pretrained(checkpoint.location, **options)
    except UniteError:
        raise
    except Exception as error:  # damaged files raise errors of many libraries
        reason = f"{place} cannot be loaded by {kind.__name__} ({first_line(error)})"
        raise InputError(reason, of=f"method {method}") from error
    # transformers fills missing weights with random numbers. A token without an embedding ends all work on a GPU.
    missing = [f"no trained {name}" for name in sorted(loaded["missing_keys"])]
    if missing or max(tokenizer.get_vocab().values()) >= config.vocab_size:
        problem = missing[0] if missing else "fewer embeddings than its tokenizer has tokens"
        raise InputError(f"{place} has {problem}; name another model", of=f"method {method}")
    return model.to(parse_device(device)).eval(), tokenizer


def make(options: Options) -> ResponseMethod:
    """Load the reward model; the method learns nothing."""
    if not options.reward_model:
        raise InputError("it needs a reward model; name one with reward_model=FOLDER_OR_ID", of="method rerank")
    return RewardModel("rerank", options.reward_model, options.device)
