"""The ensemble as a model of EleutherAI's lm-eval: ``--model unite --model_args run=runs/demo``."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ensemble.errors import InputError

MODEL = "unite"
"""What lm-eval calls it."""
OLDEST = "0.4.13"
"""The release of lm-eval that the tests compare with."""
_INSTALL = "pip install 'unite-advisor[lm-eval]'"


def check_installed(what: str) -> None:
    """Make sure that lm-eval is there.

    Args:
        what: Needs it.

    Raises:
        InputError: It is not, or it is older than OLDEST.
    """
    try:
        installed = version("lm_eval")
    except PackageNotFoundError:
        raise InputError(f"{what} needs lm-eval, which is not installed; {_INSTALL}") from None
    from packaging.version import Version

    if Version(installed) < Version(OLDEST):
        raise InputError(f"{what} needs lm-eval {OLDEST}, and {installed} is installed; {_INSTALL}")


def register() -> None:
    """Tell lm-eval of the model, in this process; releases that read entry points know it by themselves."""
    # Its own models first: 0.4.13 looks for them only while it knows none.
    import lm_eval.models  # noqa: F401  # imported for that alone
    from lm_eval.api.registry import model_registry

    if MODEL not in model_registry:
        model_registry.register(MODEL, target="advisor.lm_eval.model:UniteLM")
