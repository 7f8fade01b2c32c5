"""A step that ``torch.compile`` compiles (``ADVISOR_COMPILE=1``) against the same without; it needs a C++ compiler."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch
from test_compiled_step import large
from torch._inductor import config

from benchmarks.sync import prompts, tiny_members
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError
from ensemble.step import compiled, fused

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def on_tensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The flag is set, and the step is not that of ``compiled.c``."""
    monkeypatch.setattr(compiled, "library", None)
    monkeypatch.setattr(fused, "is_wanted", True)
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_a_step_is_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = large(rows, 3000, torch.Generator().manual_seed(rows))
    step = case.run()
    monkeypatch.setattr(fused, "is_wanted", False)
    expected = case.run()
    for name in ("entries", "present", "ids"):
        assert torch.equal(getattr(step, name), getattr(expected, name)), name
    for name in ("members", "mean"):
        torch.testing.assert_close(getattr(step, name), getattr(expected, name))


def test_texts_are_the_same_alone_in_batches_and_with_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = Ensemble(tiny_members()[:2])
    texts = [ensemble.encode(prompt) for prompt in prompts(5)]

    def written() -> list[dict[int, str]]:
        ways = [Batch(1, draft=0), Batch(5, draft=0), Batch(1)]
        return [{n: made.text for n, made in ensemble.generate_each(texts, Settings(12), way)} for way in ways]

    fast = written()
    monkeypatch.setattr(fused, "is_wanted", False)
    assert fast == written()


def test_a_machine_that_cannot_compile_is_told_in_one_line() -> None:
    case = large(2, 50, torch.Generator())
    fused.compiled.cache_clear()
    with config.patch({"cpp.cxx": (None, "/nonexistent")}), pytest.raises(InputError) as error:
        case.run()
    assert "ADVISOR_COMPILE: torch.compile fails here" in str(error.value)
    assert "unset the variable" in str(error.value)
    assert "\n" not in str(error.value)
