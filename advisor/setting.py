"""How a run loads its models and generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from advisor.tasks.task import Task
from ensemble.models.spec import ChatTemplate

EngineName = Literal["local", "ray"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a run loads its models and generates.

    Attributes:
        device: For candidates that name none.
        dtype: For candidates that name none.
        chat_template: For candidates that name none.
        max_new_tokens: Tokens after which a response is cut off; None for the task's own.
        batch_size: Prompts at a time; None to begin with a usual one, and halve it when memory runs out.
        temperature: 0 for greedy decoding, else the temperature of the draws.
        seed: Of the draws.
        engine: Where candidates and sets answer: in this process, or on a Ray cluster.
        ray_address: The cluster's; see :func:`ensemble.distributed.ray_cluster.cluster`.
    """

    device: str = "cpu"
    dtype: str = "auto"
    chat_template: ChatTemplate = "auto"
    max_new_tokens: int | None = None
    batch_size: int | None = None
    temperature: float = 0.0
    seed: int = 0
    engine: EngineName = "local"
    ray_address: str | None = None

    def limit(self, task: Task) -> int:
        """Tokens after which a response to a task's question is cut off."""
        return self.max_new_tokens or task.max_new_tokens
