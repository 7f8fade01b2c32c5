"""The ensemble as a model of EleutherAI's lm-eval: ``--model unite --model_args run=runs/demo``."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ensemble.errors import InputError

MODEL = "unite"
"""The model's name in lm-eval."""
OLDEST = "0.4.13"
"""The oldest supported release of lm-eval; the tests compare with it."""
_INSTALL = "pip install 'unite-advisor[lm-eval]'"


def check_installed(feature: str) -> None:
    """Check that lm-eval is installed.

    Args:
        feature: What needs it, for the message.

    Raises:
        InputError: It is not installed, or older than OLDEST.
    """
    try:
        installed = version("lm_eval")
    except PackageNotFoundError:
        raise InputError(f"{feature} needs lm-eval, which is not installed; {_INSTALL}") from None
    from packaging.version import Version

    if Version(installed) < Version(OLDEST):
        raise InputError(f"{feature} needs lm-eval {OLDEST} or newer; {installed} is installed; {_INSTALL}")


def register() -> None:
    """Register the model with lm-eval, in this process."""
    # Later releases read the entry point; 0.4.13 does not. It also looks for its own models only while no model is
    # registered, so these are imported first.
    import lm_eval.models  # noqa: F401
    from lm_eval.api.registry import model_registry

    if MODEL not in model_registry:
        model_registry.register(MODEL, target="advisor.lm_eval.model:UniteLM")
