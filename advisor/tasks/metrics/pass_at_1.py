r"""Pass at 1: the program in the response passes every test that the reference gives.

    >>> EXECUTING.score("```python\ndef double(x):\n    return 2 * x\n```", ("assert double(2) == 4",), ())
    (1.0, 'def double(x):\n    return 2 * x\n')

The program is the text between `[BEGIN]` and `[DONE]` if the response has them, else the whole response; if this text
has fenced blocks of Python, the first that defines something. It runs in the sandbox, and only if the user allows it.

As in lm-eval 0.4.13 (`mbpp`, `mbpp_instruct`), program and tests run in one module that is not `__main__`. The
differences: fenced blocks count with either prompt, and blocks of other languages are skipped; the set-up code of a
task runs (two tasks of 974 have one, and fail without it); the limit is 5 s of processor time instead of 3 s of
wall-clock time. Not covered: pass at k for k above 1, languages other than Python.
"""

from __future__ import annotations

import re
import textwrap
import warnings

from advisor.tasks.metrics import Metric
from ensemble.errors import InputError

_FENCED = re.compile(r"```([^`\n]*)\n(.*?)(?:```|\Z)", re.DOTALL)
_DEFINING = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)\b|^\w+[ \t]*=", re.MULTILINE)
_PYTHON = ("", "python", "python3", "py")


class PassAt1(Metric):
    """1 if the program passes all tests, else 0; it raises where programs are not allowed to run."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed

    def problem(self, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """The accepted texts are tests, so each must be Python."""
        for test in accepted:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about style, such as an invalid escape
                    compile(test, "<test>", "exec", dont_inherit=True)
            except (RecursionError, MemoryError):
                return f"the test {test[:60]!r} is nested too deeply"
            except (SyntaxError, ValueError) as error:
                return f"the test {test!r} is not Python ({error})"
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Run the program and the tests; the answer is the program."""
        if not self._allowed:
            raise InputError(
                "pass_at_1 runs programs that models wrote; load its task with allow_code_execution=True to allow it"
            )
        program = read_program(text)
        if program is None:
            return 0.0, None
        from advisor import sandbox  # here, since no other metric needs it

        return float(sandbox.run(program, accepted) is None), program


def read_program(text: str) -> str | None:
    """The program in a response; None if the response has no text. It never raises."""
    # Without Python's parser, which some texts can crash, and this process with it.
    body = text.partition("[BEGIN]")[2] or text
    body = body.partition("[DONE]")[0]
    blocks = [
        textwrap.dedent(block)
        for label, block in _FENCED.findall(body)
        if label.strip().lower().split(" ")[0] in _PYTHON
    ]
    before = body.partition("```")[0]
    # If the prompt has opened a fence, the program comes before the first fence of the response.
    candidates = [*blocks, before] if blocks else [before if "```" in body else body]
    defining = [candidate for candidate in candidates if _DEFINING.search(candidate)]
    return next((candidate for candidate in (*defining, *candidates) if candidate.strip()), None)


METRIC = PassAt1(allowed=False)
EXECUTING = PassAt1(allowed=True)
