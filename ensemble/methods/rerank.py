"""Reranking: a reward model reads every member's response and the best one is taken.

``pointwise`` takes any sequence-classification model of transformers with a single output, a reward: it reads prompt
and response as a pair of texts. ``pairwise`` is in the manner of PairRanker (Jiang et al., LLM-Blender, 2023): the
model reads the prompt and two responses and says which is better, each pair in both orders, and a response's reward is
the sum of all its comparisons. PairRanker marks the parts of its input with special tokens of its own; here prompt and
both responses are parted by the tokenizer's separator (a blank line where it has none), and the model has one output
(above 0: the first is better) or two (the first's and the second's logit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

from ensemble.errors import InputError, MemberError
from ensemble.methods import Method
from ensemble.methods._response import Answered, ResponseMethod, ResponseSetup

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

METHOD = Method(
    level="response",
    summary="the response that a reward model likes best, read one by one or in pairs (PairRanker)",
    when="a reward model for this kind of text is at hand, and answers have no one wording",
)


@dataclass(frozen=True, slots=True)
class Options:
    """The reranker's settings.

    Attributes:
        reward_model: A folder, or an id on the hub.
        kind: What the model reads at a time: one response, or two.
        device: ``cpu``, ``cuda``, ...
    """

    reward_model: str | None = None
    kind: Literal["pointwise", "pairwise"] = "pointwise"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.kind not in ("pointwise", "pairwise"):
            raise InputError(f"kind {self.kind!r}: not one of pointwise, pairwise")


@dataclass(frozen=True, slots=True)
class Reranker:
    """A reward model, and how it is asked."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    kind: Literal["pointwise", "pairwise"]

    def choose(self, question: Answered) -> int:
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        texts = [response.text for response in question.responses]
        rewards = self._alone(question.prompt, texts) if self.kind == "pointwise" else self._pairs(question, texts)
        return rewards.index(max(rewards))

    def _alone(self, prompt: str, texts: Sequence[str]) -> list[float]:
        return [float(logits[0]) for logits in self._read([prompt] * len(texts), texts)]

    def _pairs(self, question: Answered, texts: Sequence[str]) -> list[float]:
        # One text is often several members': it is read once.
        different = list(dict.fromkeys(texts))
        pairs = list(permutations(different, 2))
        if not pairs:
            return [0.0] * len(texts)
        parted = self.tokenizer.sep_token or "\n\n"
        read = self._read([question.prompt] * len(pairs), [f"{a}{parted}{b}" for a, b in pairs])
        reward = dict.fromkeys(different, 0.0)
        for (a, b), logits in zip(pairs, read, strict=True):
            better = float(logits[0] - logits[1]) if len(logits) == 2 else float(logits[0])
            reward[a] += better
            reward[b] -= better
        # Rounded, so that the order of the additions decides nothing.
        return [round(reward[text], 6) for text in texts]

    def _read(self, prompts: Sequence[str], texts: Sequence[str]) -> Any:
        import torch

        with torch.inference_mode():
            inputs = self.tokenizer(
                list(prompts), list(texts), padding=True, truncation="longest_first", return_tensors="pt"
            )
            logits = self.model(**inputs.to(self.model.device)).logits.float()
        if bool(logits.isnan().any()):
            raise MemberError("method rerank: the reward model's outputs are not numbers (NaN)")
        return logits


def make(setup: ResponseSetup, options: Options) -> ResponseMethod:  # noqa: ARG001  # any members will do
    """Load the reward model.

    Raises:
        InputError: None was named, or it is no sequence classifier with the outputs that are needed.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    if options.reward_model is None:
        raise InputError("method rerank: it needs a reward model; name one with reward_model=FOLDER_OR_ID")
    place = options.reward_model
    try:
        labels = AutoConfig.from_pretrained(place).num_labels
        tokenizer = AutoTokenizer.from_pretrained(place)
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            place, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise InputError(f"method rerank: {place} cannot be loaded as a sequence classifier ({error})") from error
    if missing := sorted(loaded["missing_keys"]):
        raise InputError(f"method rerank: {place} has no trained {missing[0]}; name a sequence classifier")
    if labels > (1 if options.kind == "pointwise" else 2):
        wanted = "one output, a reward" if options.kind == "pointwise" else "one output or two"
        raise InputError(f"method rerank: {place} has {labels} outputs; {options.kind} needs {wanted}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        model.config.pad_token_id = tokenizer.pad_token_id
    return Reranker(model.to(options.device).eval(), tokenizer, options.kind)
