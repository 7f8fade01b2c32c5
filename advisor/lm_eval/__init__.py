"""The ensemble as a model of EleutherAI's lm-eval: ``--model unite --model_args run=runs/demo``."""

from __future__ import annotations

MODEL = "unite"
"""The model's name in lm-eval."""


def register() -> None:
    """Register the model with lm-eval, in this process."""
    # Later releases read the entry point; 0.4.13 does not. It also looks for its own models only while no model is
    # registered, so these are imported first.
    import lm_eval.models  # noqa: F401
    from lm_eval.api.registry import model_registry

    if MODEL not in model_registry:
        model_registry.register(MODEL, target="advisor.lm_eval.model:UniteLM")
