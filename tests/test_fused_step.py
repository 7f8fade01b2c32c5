"""A step that ``torch.compile`` compiles (``ADVISOR_COMPILE=1``) against the same without; it needs a C++ compiler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from test_compiled_step import assert_same, large
from test_unite_step import Case
from tiny import can_compile
from torch._dynamo import config as dynamo
from torch._dynamo.utils import counters
from torch._inductor import config

from benchmarks.sync import prompts, tiny_members
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError
from ensemble.step import compiled, fused
from ensemble.step.distribution import Distribution
from ensemble.vocabulary.joint import JointVocabulary

pytestmark = pytest.mark.skipif(not can_compile(), reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def on_tensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The flag is set, and the step is not that of ``compiled.c``."""
    monkeypatch.setattr(compiled, "library", None)
    monkeypatch.setattr(fused, "is_wanted", True)
    counters.clear()
    yield
    torch.compiler.reset()


def both(
    case: Case, monkeypatch: pytest.MonkeyPatch, also: torch.Tensor | None = None
) -> tuple[Distribution, Distribution]:
    """A step compiled, and the same without."""
    before = counters["stats"]["unique_graphs"]
    step = case.run(also)
    assert counters["stats"]["unique_graphs"] == before + 1
    monkeypatch.setattr(fused, "is_wanted", False)
    return step, case.run(also)


@pytest.mark.parametrize("kind", ["as they are", "many equal", "half precision", "without candidates", "not numbers"])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_a_step_is_the_same(rows: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = large(rows, 3000, torch.Generator().manual_seed(rows))
    if kind == "many equal":
        case = replace(case, logits=[z.round() for z in case.logits])
    if kind == "half precision":
        case = replace(case, logits=[z.bfloat16() for z in case.logits])
    if kind == "without candidates":
        case.logits[0][:, 5:] = -torch.inf
    if kind == "not numbers":
        case.logits[0][-1, 7] = torch.nan
    assert_same(*both(case, monkeypatch))


def test_entries_are_added_to_the_union(monkeypatch: pytest.MonkeyPatch) -> None:
    case = large(2, 500, torch.Generator().manual_seed(0))
    assert_same(*both(case, monkeypatch, torch.tensor([[3, 400], [7, 7]])))


def test_texts_are_the_same_alone_in_batches_and_with_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = Ensemble(tiny_members())
    texts = [ensemble.encode(prompt) for prompt in prompts(5)]

    def written() -> list[dict[int, str]]:
        ways = [Batch(1, draft=0), Batch(5, draft=0), Batch(1)]
        return [{n: made.text for n, made in ensemble.generate_each(texts, Settings(12), way)} for way in ways]

    fast = written()
    assert counters["stats"]["unique_graphs"] > 1
    monkeypatch.setattr(fused, "is_wanted", False)
    assert fast == written()


def test_variants_beyond_the_limit_of_torch_are_compiled_too() -> None:
    case = large(1, 40, torch.Generator().manual_seed(1))
    fused.compiled_once.cache_clear()
    with dynamo.patch(recompile_limit=2):
        for count in (1, 2, 3):
            joint = JointVocabulary(case.joint.size, (*case.joint.members, *case.joint.members)[:count])
            replace(case, logits=[*case.logits * 2][:count], joint=joint, weights=torch.ones(count) / count).run()
    assert counters["stats"]["unique_graphs"] == 3


def test_a_machine_that_cannot_compile_is_told_in_one_line() -> None:
    case = large(2, 50, torch.Generator())
    with config.patch({"cpp.cxx": (None, "/nonexistent")}), pytest.raises(InputError) as error:
        case.run()
    assert "ADVISOR_COMPILE: torch.compile fails here" in str(error.value)
    assert "unset the variable" in str(error.value)
    assert "\n" not in str(error.value)
