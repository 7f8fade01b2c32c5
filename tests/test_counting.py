"""The counter of device reads: it sees what would make the host wait, and nothing that stays on the host."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from benchmarks._counting import DeviceCounter

DEVICE = torch.device("cpu")


def counted(work, model=None):
    model = model or torch.nn.Linear(3, 4)
    with torch.inference_mode(), DeviceCounter([model]) as counter:
        logits = model(torch.ones(2, 3))
        counter.counts.clear()
        work(logits)
    return counter.counts


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.tolist(), lambda x: x[0, 0].item(), lambda x: bool((x > 0).all()), lambda x: int(x[0, 0]),
        lambda x: float(x.sum()), lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.numpy(),
        lambda x: list(range(x.argmax())), lambda x: x.nonzero(), lambda x: x[x > 0],
        lambda x: torch.equal(x, x + 1), lambda x: x.unique(),
    ],
)  # fmt: skip
def test_everything_that_waits_for_the_device_is_one_read(read):
    assert counted(read)["reads"] == 1


def test_moving_to_the_device_is_a_copy_and_leaves_the_original_on_the_host():
    def work(_):
        ids = torch.tensor([1, 2])
        there = ids.to(DEVICE)
        ids.tolist()
        there.tolist()
        torch.tensor([3], device=DEVICE)

    assert counted(work) == Counter(copies=2, reads=1)


def test_the_models_own_reads_and_operations_are_counted_apart():
    class Reads(torch.nn.Module):
        def forward(self, x):
            assert bool((x > 0).all())
            return x * 2

    counts = counted(lambda x: (model(x), x.tolist()), model := Reads())
    assert counts == Counter(reads_in_models=1, reads=1)
