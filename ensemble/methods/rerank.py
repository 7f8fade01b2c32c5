"""Reranking: a reward model reads every member's response, and the response with the highest reward is taken.

``pointwise`` reads the prompt and one response as a pair of texts. The model is any sequence-classification model of
transformers with one output, the reward. ``pairwise`` follows PairRanker (Jiang et al., LLM-Blender, 2023): the model
reads the prompt and two responses and says which one is better, for each pair in both orders. The reward of a response
is the sum over all its comparisons. PairRanker separates its input with its model's special tokens; here the
tokenizer's separator token separates the two responses (a blank line if it has none). A pairwise model has one output
(above 0: the first response is better) or two (a logit for each response).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

from ensemble.errors import InputError, MemberError, UniteError, first_line
from ensemble.methods import Method
from ensemble.methods._response import ResponseMethod
from ensemble.models.model_files import check_files, check_size, stored_weights
from ensemble.models.spec import Checkpoint, resolve_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

METHOD = Method(
    level="response",
    summary="the response with the highest reward from a reward model, one by one or in pairs (PairRanker)",
    when="free text with many correct wordings, when you have a reward model for this kind of text",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the reranker.

    Attributes:
        reward_model: A folder, or an id on the hub.
        kind: Whether the model reads one response at a time (``pointwise``) or two (``pairwise``).
        device: ``auto``, ``cpu``, ``cuda``, ...
    """

    reward_model: str | None = None
    kind: Literal["pointwise", "pairwise"] = "pointwise"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.kind not in ("pointwise", "pairwise"):
            raise InputError(f"kind {self.kind!r}: not one of pointwise, pairwise")


class Reranker:
    """A reward model with its tokenizer; see :class:`Options` for ``kind``."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, kind: str) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._kind = kind

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        if self._kind == "pointwise":
            rewards = [float(logits[0]) for logits in self._logits([prompt] * len(texts), texts)]
        else:
            rewards = self._pairwise_rewards(prompt, texts)
        return rewards.index(max(rewards))

    def _pairwise_rewards(self, prompt: str, texts: Sequence[str]) -> list[float]:
        # Several members often write the same text; the model reads it once.
        # dict.fromkeys keeps the order, so that ties go to the earlier member.
        different = list(dict.fromkeys(texts))
        pairs = list(permutations(different, 2))
        if not pairs:
            return [0.0] * len(texts)
        separator = self._tokenizer.sep_token or "\n\n"
        outputs = self._logits([prompt] * len(pairs), [f"{a}{separator}{b}" for a, b in pairs])
        reward = dict.fromkeys(different, 0.0)
        for (a, b), logits in zip(pairs, outputs, strict=True):
            better = float(logits[0] - logits[1]) if len(logits) == 2 else float(logits[0])
            reward[a] += better
            reward[b] -= better
        # Rounded, so that the order of the additions does not decide a tie.
        return [round(reward[text], 6) for text in texts]

    def _logits(self, prompts: Sequence[str], texts: Sequence[str]) -> Any:
        import torch

        with torch.inference_mode():
            inputs = self._tokenizer(
                list(prompts), list(texts), padding=True, truncation="longest_first", return_tensors="pt"
            )
            logits = self._model(**inputs.to(self._model.device)).logits.float()
        if bool(logits.isnan().any()):
            raise MemberError("method rerank: the reward model's outputs are not numbers (NaN)")
        return logits


def make(prompts: Sequence[str], scores: Sequence[Sequence[float]], options: Options) -> ResponseMethod:  # noqa: ARG001
    """Load the reward model; the method learns nothing.

    Raises:
        InputError: No reward model is given, or it is not a sequence classifier with the outputs that ``kind`` needs.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    if options.reward_model is None:
        raise InputError("method rerank: it needs a reward model; name one with reward_model=FOLDER_OR_ID")
    place = options.reward_model
    checkpoint = Checkpoint(place)
    # The same checks as for members: a reward model's files come from strangers, too.
    check_files(checkpoint)
    try:
        config = AutoConfig.from_pretrained(place)
        if (weights := stored_weights(place, checkpoint)) is not None:
            check_size(place, config, AutoModelForSequenceClassification, weights[0], trust_remote_code=False)
        labels = config.num_labels
        tokenizer = AutoTokenizer.from_pretrained(place)
        # Only safetensors, because reading a pickle can run code.
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            place, use_safetensors=True, output_loading_info=True
        )
    except UniteError:
        raise
    except Exception as error:  # damaged files raise errors of many libraries
        raise InputError(
            f"method rerank: {place} cannot be loaded as a sequence classifier ({first_line(error)})"
        ) from error
    # A base model loads with a random classifier; its rewards would mean nothing.
    if missing := sorted(loaded["missing_keys"]):
        raise InputError(f"method rerank: {place} has no trained {missing[0]}; name a sequence classifier")
    if labels > (1 if options.kind == "pointwise" else 2):
        wanted = "one output, a reward" if options.kind == "pointwise" else "one output or two"
        raise InputError(f"method rerank: {place} has {labels} outputs; {options.kind} needs {wanted}")
    # A batch needs padding, and the model uses the padding id to find the last token of each text.
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        model.config.pad_token_id = tokenizer.pad_token_id
    return Reranker(model.to(resolve_device(options.device)).eval(), tokenizer, options.kind)
