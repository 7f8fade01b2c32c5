r"""``lm_eval:NAME``: tasks of an installed lm-eval that give each question a score between 0 and 1.

    >>> load_task("lm_eval:gsm8k:flexible-extract", split="held_out", limit=20)
    Task(name='lm_eval:gsm8k', metric='exact_match,flexible-extract', ...)

lm-eval's code makes the prompts, stops, options and scores. With ``--seed 0`` a prompt is, character for character, the
one that lm-eval makes for that question; another seed draws other demonstrations. A chat template gets the whole prompt
as one message, as with lm-eval's ``--apply_chat_template``, but without system prompts.

The held-out split is the one that lm-eval evaluates on: the task's test split, else its validation split. The dev split
is 300 questions, drawn by seed, of the validation split, else of the training split, else of the split of the
demonstrations, if that has at least 20. Without these, dev is at most half of the test split, and the rest is held out.
Held-out never holds a question of dev, by the question's text. A dev question that is among its own demonstrations is
left out.

Not covered, and refused with the reason: groups of tasks, code that a model wrote (the built-in task ``mbpp`` runs it),
perplexity, metrics of a whole corpus, likelihood per character (``acc_norm``), sampled responses, images and sound.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ensemble.errors import InputError

OLDEST = "0.4.13"
"""The oldest supported release of lm-eval; the tests compare with it."""
_INSTALL = "pip install 'unite-advisor[lm-eval]'"


def check_installed(feature: str) -> None:
    """Check that lm-eval is installed, and not older than OLDEST; the message names the feature that needs it."""
    try:
        installed = version("lm_eval")
    except PackageNotFoundError:
        raise InputError(f"{feature} needs lm-eval, which is not installed; {_INSTALL}") from None
    from packaging.version import Version  # here, since few commands need lm-eval

    if Version(installed) < Version(OLDEST):
        raise InputError(f"{feature} needs lm-eval {OLDEST} or newer; {installed} is installed; {_INSTALL}")
