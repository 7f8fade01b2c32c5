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


def test_tensors_of_the_host_are_not_read_from_the_device():
    def work(_):
        filled = torch.ones(2, 3, dtype=torch.bool)
        assert bool(filled.all())
        assert filled.nonzero().tolist()
        assert int(filled.sum())

    assert counted(work) == Counter()


def test_what_was_read_stays_on_the_host():
    def work(x):
        read = x.cpu()
        read.tolist()
        float((read + 1).sum())

    assert counted(work)["reads"] == 1


def test_moving_to_the_device_is_a_copy_and_leaves_the_original_on_the_host():
    def work(_):
        ids = torch.tensor([1, 2])
        there = ids.to(DEVICE)
        ids.tolist()
        there.tolist()
        torch.tensor([3], device=DEVICE)

    assert counted(work) == Counter(copies=2, reads=1)


def test_views_launch_no_kernel_and_operations_do():
    assert counted(lambda x: x[0].view(2, 2).transpose(0, 1).unsqueeze(0)) == Counter()
    assert counted(lambda x: x.topk(2).values + 1)["kernels"] == 2
    # A reshape of what is not contiguous copies it.
    assert counted(lambda x: x.t().reshape(-1))["kernels"] == 1


def test_an_operation_over_the_host_and_the_device_is_counted():
    assert counted(lambda x: x + torch.ones(4))["mixed"] == 1
    assert counted(lambda x: x * torch.tensor(2.0))["mixed"] == 0


def test_the_models_own_reads_and_operations_are_counted_apart():
    class Reads(torch.nn.Module):
        def forward(self, x):
            assert bool((x > 0).all())
            return x * 2

    counts = counted(lambda x: (model(x), x.tolist()), model := Reads())
    assert counts == Counter(reads_in_models=1, reads=1)
