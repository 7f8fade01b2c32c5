"""``advisor lm-eval``: lm-eval's own command line, with the ensemble among its models."""

from __future__ import annotations

import sys

import typer

from ensemble.errors import UniteError

ABOUT = """\
advisor lm-eval passes what follows to lm-eval's own command line, which knows the ensemble as a model:

  advisor lm-eval run --model unite --model_args run=runs/demo --tasks gsm8k --batch_size auto

--model_args: run=FOLDER, or models=FOLDER+FOLDER; method, k, weights, dtype, device, chat_template, max_gen_toks, seed
and the method's own settings. What follows is lm-eval's help; docs/how-to/lm-eval.md has more.
"""
PASSED_ON = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
"""How the command is read: not at all."""


def lm_eval(context: typer.Context) -> None:
    """Run lm-eval with the ensemble as a model (--model unite); all that follows is lm-eval's own."""
    given = [one for one in context.args if one != "--debug"]
    if not given or given in (["--help"], ["-h"]):
        print(ABOUT)
        given = ["--help"]
    from advisor.lm_eval import check_installed, register

    check_installed("advisor lm-eval")
    register()
    from lm_eval.__main__ import cli_evaluate

    before = sys.argv
    sys.argv = ["lm-eval", *given]
    try:
        cli_evaluate()
    except UniteError:
        raise
    except Exception as error:  # lm-eval has no exceptions of its own, and task files may run any code
        reason = " ".join(str(error).split()) or "it does not say why"
        raise UniteError(f"lm-eval: {type(error).__name__}: {reason} (--debug shows where)") from error
    finally:
        sys.argv = before
