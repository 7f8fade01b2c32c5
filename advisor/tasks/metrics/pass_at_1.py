r"""Pass at 1: the program in the response passes every test that the reference gives.

    >>> EXECUTING.score("```python\ndef double(x):\n    return 2 * x\n```", ("assert double(2) == 4",), ())
    (1.0, 'def double(x):\n    return 2 * x\n')

The program is what stands between `[BEGIN]` and `[DONE]`, where they are there; in that, the first fenced block of
Python that defines something; else all of it. It is run in the sandbox, and only where the user has allowed that.

Like lm-eval 0.4.13 (`mbpp`, `mbpp_instruct`), program and tests are run in one module that is not `__main__`. Other
than there: fenced blocks count under either prompt, and a block of another language is skipped; the set-up code of a
task is run (two tasks of 974 have one, and fail without); the limit is 5 s of processor time, and not 3 s by the clock.
Not covered: pass at k for k above 1, other languages than Python.
"""

from __future__ import annotations

import re
import textwrap
import warnings

from ensemble.errors import InputError

_FENCED = re.compile(r"```([^`\n]*)\n(.*?)(?:```|\Z)", re.DOTALL)
_DEFINING = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)\b|^\w+[ \t]*=", re.MULTILINE)
_PYTHON = ("", "python", "python3", "py")


class PassAt1:
    """1 where the program passes all tests, else 0.

    Args:
        allowed: Whether programs may be run; else every score is refused.
    """

    packages: tuple[str, ...] = ()

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed

    def problem(self, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """The reference is Python: all tests, of which none may fail."""
        for test in accepted:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of style, such as an escape that is none
                    compile(test, "<test>", "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                return f"the test {test!r} is not Python ({error})"
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Run the program and the tests; what was read is the program.

        Raises:
            InputError: It was not allowed.
        """
        if not self._allowed:
            raise InputError(
                "pass_at_1 runs programs that models wrote; load its task with allow_code_execution=True to allow it"
            )
        program = read_program(text)
        if program is None:
            return 0.0, None
        from advisor import sandbox  # here, so that no other metric waits for it

        return float(sandbox.run(program, accepted).passed), program


def read_program(text: str) -> str | None:
    """The program that a response holds; None where it holds nothing. Never raises, whatever the text."""
    # Nothing is parsed here: a text can be such that Python's own parser takes the process down.
    body = text.partition("[BEGIN]")[2] or text
    body = body.partition("[DONE]")[0]
    blocks = [
        textwrap.dedent(block)
        for label, block in _FENCED.findall(body)
        if label.strip().lower().split(" ")[0] in _PYTHON
    ]
    before = body.partition("```")[0]
    # Where the prompt has opened the fence, the program comes before the first one of the response.
    candidates = [*blocks, before] if blocks else [before if "```" in body else body]
    defining = [candidate for candidate in candidates if _DEFINING.search(candidate)]
    return next((candidate for candidate in (*defining, *candidates) if candidate.strip()), None)


METRIC = PassAt1(allowed=False)
EXECUTING = PassAt1(allowed=True)
