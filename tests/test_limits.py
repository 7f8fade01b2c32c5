"""Functions on untrusted input, in a child process with limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from ensemble.common.limits import LimitedProcess, LimitExceededError
from ensemble.errors import InputError


@pytest.fixture(scope="module")
def process() -> Iterator[LimitedProcess]:
    with closing(LimitedProcess()) as started:
        yield started


def test_a_result_is_the_functions_own(process: LimitedProcess) -> None:
    assert process.call("json:loads", '{"a": [1, null]}') == {"a": [1, None]}


def test_an_error_of_the_function_is_one_line_of_bad_input(process: LimitedProcess) -> None:
    with pytest.raises(InputError, match=r"^math domain error$"):
        process.call("math:sqrt", -1)


def test_a_call_ends_at_its_limit_of_processor_time_and_the_next_one_works(process: LimitedProcess) -> None:
    with pytest.raises(LimitExceededError, match=r"more than 0\.2 s"):
        process.call("math:factorial", 10**6, seconds=0.2)
    assert process.call("math:sqrt", 9) == 3


def test_waiting_is_no_processor_time_but_it_ends_too(process: LimitedProcess) -> None:
    assert process.call("time:sleep", 0.3, seconds=0.1) is None
    with pytest.raises(LimitExceededError, match=r"more than 0\.5 s"):
        process.call("time:sleep", 600, seconds=0.05)
    assert process.call("math:sqrt", 9) == 3


def test_memory_is_limited_and_the_next_call_works(process: LimitedProcess) -> None:
    with pytest.raises(LimitExceededError, match="too much memory"):
        process.call("operator:mul", "a", 3 * 10**9)
    assert process.call("math:sqrt", 9) == 3


def test_a_process_that_a_library_ends_is_an_error_and_the_next_call_works(process: LimitedProcess) -> None:
    with pytest.raises(LimitExceededError, match="ends the process"):
        process.call("os:abort")
    assert process.call("math:sqrt", 9) == 3


def test_a_large_argument_reaches_the_function(process: LimitedProcess) -> None:
    assert process.call("builtins:len", "a" * 10**7) == 10**7


def test_a_child_knows_no_secret_of_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    with closing(LimitedProcess()) as process:
        assert process.call("os:getenv", "SOME_API_KEY") is None


def test_what_a_function_prints_is_not_taken_for_its_result(process: LimitedProcess) -> None:
    assert process.call("builtins:print", '{"result": 1}') is None
