"""How often a step waits for the device: once to read what it chose, however much of it is told."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from tiny import member
from torch.utils._python_dispatch import TorchDispatchMode

from ensemble.methods import gac, gac_threshold, safe, unite
from ensemble.models.member import LocalMember
from ensemble.step.sampler import Detokenizer, Draw, Sampler
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import JointVocabulary, build

BATCH = 6


class Reads(TorchDispatchMode):
    """Counts what makes the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The size of what nonzero() returns is only known after it has run; a mask as an index needs it, too.
        waits = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::unique")
        self.count += func.name().startswith(waits)
        return func(*args, **(kwargs or {}))


@contextmanager
def reads() -> Iterator[Reads]:
    """Count reads; those of whole tensors are no operations, and are counted at the methods."""
    counter = Reads()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("tolist", "numpy", "cpu"):
            plain = getattr(torch.Tensor, name)

            def counted(self: torch.Tensor, *args: Any, _plain: Any = plain, **kwargs: Any) -> Any:
                counter.count += 1
                return _plain(self, *args, **kwargs)

            patch.setattr(torch.Tensor, name, counted)
        with counter:
            yield counter


@cache
def members() -> tuple[list[LocalMember], JointVocabulary]:
    made = [member("bytes"), member("unigram with bytes", 1)]
    return made, build([each.vocabulary for each in made])


RULES = {
    "unite": lambda setup: unite.make(setup, unite.Options()),
    "gac": lambda setup: gac.make(setup, None),
    "safe": lambda setup: safe.make(setup, safe.Options()),
    "gac-threshold": lambda setup: gac_threshold.make(setup, gac_threshold.Options(0.02)),
    "a closed gate": lambda setup: gac_threshold.make(setup, gac_threshold.Options(0.0)),
}
GATED = ("safe", "gac-threshold")
DRAWS: dict[str, Sequence[Draw]] = {
    "greedy": [Draw()] * BATCH,
    "log-probabilities": [Draw(alternatives=3)] * BATCH,
    "drawn": [Draw(0.7, 0.9, n / BATCH) for n in range(BATCH)],
    "among the first": [Draw(0.7, 0.9, n / BATCH, top_k=3) for n in range(BATCH)],
    "each in its way": [Draw(n % 2, 0.9, 0.5, n % 3 or None) for n in range(BATCH)],
}


def rule_of(name: str) -> tuple[TokenRule, Detokenizer, Setup]:
    made, joint = members()
    setup = Setup(made, joint, 10, (0.5, 0.5))
    return RULES[name](setup), Detokenizer([each.vocabulary for each in made]), setup


@torch.inference_mode()
@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("name", RULES)
def test_a_step_is_read_in_one_piece_and_its_gate_in_another(name: str, draws: str, trace: bool) -> None:
    rule, texts, setup = rule_of(name)
    sampler = Sampler(rule, 2, texts, trace=trace)
    generator = torch.Generator().manual_seed(0)

    def logits() -> list[torch.Tensor]:
        return [torch.randn(BATCH, each.vocabulary.size, generator=generator) * 3 for each in setup.members]

    chance = random.Random(0)
    # The tables are copied to the host once, when the bytes of an entry are needed for the first time.
    texts.entry_bytes(1)
    for each in [logits() for _ in range(3)]:
        with reads() as counter:
            sampled = sampler(each, DRAWS[draws], lambda *_: chance.random() < 0.5)
        assert len(sampled) == BATCH
        assert all((token.step is not None) == trace for token in sampled)
        assert counter.count <= 1 + (name in GATED)


@torch.inference_mode()
def test_the_bytes_of_an_entry_are_looked_up_without_the_device() -> None:
    _, texts, setup = rule_of("unite")
    texts.entry_bytes(1)
    with reads() as counter:
        found = [texts.entry_bytes(entry) for entry in range(setup.joint.size)]
    assert counter.count == 0
    assert found[0] is None
    assert len({*found}) == setup.joint.size
