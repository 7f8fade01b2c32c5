"""``advisor lm-eval``: lm-eval's own command line, with the ensemble as one of its models."""

from __future__ import annotations

import sys

import typer

from ensemble.errors import UniteError

ABOUT = """\
advisor lm-eval passes its arguments to lm-eval's own command line, which has the ensemble as a model:

  advisor lm-eval run --model unite --model_args run=runs/demo --tasks gsm8k --batch_size auto

--model_args: run=FOLDER, or models=FOLDER+FOLDER; method, k, weights, dtype, device, chat_template, max_gen_toks, seed
and the method's own options. The help of lm-eval follows; docs/how-to/lm-eval.md has more.
"""
# No argument is read here: all of them, --help too, are lm-eval's.
PASSED_ON = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


def lm_eval(context: typer.Context) -> None:
    """Run lm-eval with the ensemble as a model (--model unite); all arguments are those of lm-eval."""
    arguments = list(context.args)
    if not arguments or arguments in (["--help"], ["-h"]):
        print(ABOUT)
        arguments = ["--help"]
    from advisor.lm_eval import register
    from ensemble.common.extras import check_installed

    check_installed("lm_eval", "advisor lm-eval")
    check_installed("torch", "advisor lm-eval")
    register()
    from lm_eval.__main__ import cli_evaluate

    # lm-eval reads sys.argv itself; it has no function that takes arguments.
    before = sys.argv
    sys.argv = ["lm-eval", *arguments]
    try:
        cli_evaluate()
    except UniteError:
        raise
    # lm-eval defines no exceptions, and its task files can run any code.
    except Exception as error:
        reason = " ".join(str(error).split()) or "it gives no reason"
        raise UniteError(f"lm-eval: {type(error).__name__}: {reason} (--debug shows where)") from error
    finally:
        sys.argv = before
