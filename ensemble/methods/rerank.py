"""Reranking: a reward model reads every member's response, and the response with the highest reward is taken.

:mod:`ensemble.methods._reward_models` lists the reward models and what they read: PairRM (the published PairRanker of
LLM-Blender, Jiang et al., 2023), UltraRM, the models of OpenAssistant, and any sequence classifier of transformers, one
response at a time (``pointwise``) or in pairs (``pairwise``).

The papers use one reward model at a time. Several are a cascade, which is from this project: each model keeps the best
responses of those that the one before it kept (``keep`` different texts), and the last one takes its best. So a small
model can save a large one most of the reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._response import ResponseMethod
from ensemble.methods._reward_models import Kind, RewardModel, load_reward_model

METHOD = Method(
    level="response",
    summary="the response with the highest reward from a reward model (PairRM, UltraRM, OpenAssistant, classifiers)",
    when="free text with many correct wordings, when you have a reward model for this kind of text",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the reranker.

    Attributes:
        reward_model: A folder, or an id on the hub; several, with commas between them, are a cascade.
        kind: Whether a sequence classifier reads one response at a time (``pointwise``) or two (``pairwise``). PairRM,
            UltraRM and the models of OpenAssistant are recognised, and do not need it.
        keep: How many different responses each model of a cascade leaves to the next one, at least 1.
        device: ``auto``, ``cpu``, ``cuda``, ...
    """

    reward_model: str | None = None
    kind: Kind = "pointwise"
    keep: int = 2
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.kind not in ("pointwise", "pairwise"):
            raise InputError(f"kind {self.kind!r}: not one of pointwise, pairwise")
        if type(self.keep) is not int or self.keep < 1:
            raise InputError(f"keep {self.keep!r}: give a number of responses, at least 1")

    @property
    def models(self) -> tuple[str, ...]:
        """The folders or ids of the models, in the order of the cascade."""
        names = [name.strip() for name in str(self.reward_model or "").split(",")]
        return tuple(name for name in names if name)


class Reranker:
    """One reward model, or a cascade of several.

    Args:
        models: The reward models, at least one.
        keep: How many different responses each model leaves to the next one.
    """

    def __init__(self, models: Sequence[RewardModel], keep: int) -> None:
        self._models, self._keep = models, keep

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        left = list(range(len(texts)))
        for model in self._models[:-1]:
            ordered = [texts[n] for n in self._ordered(model, prompt, texts, left)]
            # Equal responses count once, so that the next model has a choice.
            kept = list(dict.fromkeys(ordered))[: self._keep]
            left = [n for n in left if texts[n] in kept]
        return self._ordered(self._models[-1], prompt, texts, left)[0]

    def _ordered(self, model: RewardModel, prompt: str, texts: Sequence[str], left: Sequence[int]) -> list[int]:
        """The numbers of some responses, the one with the highest reward first; of equal ones the earlier member's."""
        rewards = model.rewards(prompt, [texts[n] for n in left])
        return [n for _, n in sorted(zip(rewards, left, strict=True), key=lambda pair: (-pair[0], pair[1]))]


def make(prompts: Sequence[str], scores: Sequence[Sequence[float]], options: Options) -> ResponseMethod:  # noqa: ARG001
    """Load the reward models; the method learns nothing.

    Raises:
        InputError: No reward model is given, or one cannot be used.
        MemberError: The weights of one are damaged.
    """
    if not options.models:
        raise InputError("it needs a reward model; name one with reward_model=FOLDER_OR_ID", of="method rerank")
    models = [load_reward_model("rerank", place, options.kind, options.device) for place in options.models]
    return Reranker(models, options.keep)
