"""What a step of members on their own nodes moves, and how long it takes, on paper: ``python -m benchmarks.on_paper``.

Nothing is measured but bytes: messages are made by the functions that make them in a run, of numbers drawn at random,
and counted. Times are worked out from the machine that the options describe. The model is on the page
``docs/cluster-on-paper.md``, whose tables this prints.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ensemble.distributed.ray_messages import pack_tensor, packed

VOCABULARY = 128_256
"""Llama 3's."""
SHARED = 0.5
"""Part of a member's candidates that others have among theirs too, which the union holds once."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is assumed of the cluster.

    Attributes:
        round_trip: Seconds from a question to its answer over the network, nothing being computed.
        bandwidth: Bytes a second of the driver's network.
        call: Seconds that the driver takes to ask one member something and to take its answer.
        envelope: Bytes that Ray and the network put around a question and its answer.
        memory: Bytes a second that a node reads weights with.
        search: Seconds for the top k of one row of a vocabulary; on the nodes they are searched for at the same time.
        union: Seconds of the union's own work for one member and one row.
        rounds: Of a step with several members: 2 where logits are asked for, 1 where the winner is certain without.
    """

    round_trip: float = 0.2e-3
    bandwidth: float = 25e9 / 8
    call: float = 0.25e-3
    envelope: int = 2000
    memory: float = 3.35e12
    search: float = 0.13e-3
    union: float = 0.01e-3
    rounds: int = 2


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between the driver and one member in one step, without envelopes."""

    sent: int
    received: int

    @property
    def both(self) -> int:
        """In both directions."""
        return self.sent + self.received


def union_size(members: int, k: int) -> int:
    """Entries of the union: each member's k, of which a part is others' too."""
    return k + round((members - 1) * k * (1 - SHARED))


def traffic(members: int, k: int, batch: int, rounds: int = 2) -> Traffic:
    """What a step says to one member, made as it is made in a run.

    Args:
        members: Of the ensemble.
        k: Candidates that each brings.
        batch: Texts that are decoded together.
        rounds: See :class:`Machine`.
    """
    generator = torch.Generator().manual_seed(0)
    lengths = [300] * batch
    new = torch.randint(VOCABULARY, (batch, 1), generator=generator).tolist()
    values = torch.randn(batch, k, generator=generator)
    ids = torch.randint(VOCABULARY, (batch, k), generator=generator)
    asked = batch * (union_size(members, k) - k)
    rows = torch.arange(batch).repeat_interleave(union_size(members, k) - k)
    places = torch.randint(VOCABULARY, (asked,), generator=generator)
    feed = packed((0, batch, k, "feed", (lengths, new)))
    tops = packed((pack_tensor(values), pack_tensor(ids)))
    if rounds == 1 or not asked:
        return Traffic(len(feed), len(tops))
    at = packed((0, batch, k, "at", (pack_tensor(rows), pack_tensor(places))))
    logits = packed(pack_tensor(torch.randn(asked, generator=generator)))
    return Traffic(len(feed) + len(at), len(tops) + len(logits))


def dense(batch: int) -> int:
    """Bytes of all logits of one member, in float32."""
    return 4 * VOCABULARY * batch


def overhead(machine: Machine, members: int, k: int, batch: int) -> float:
    """Seconds that a step takes longer than its slowest member: one or two rounds of questions to all of them."""
    rounds = machine.rounds if members > 1 else 1
    moved = members * (traffic(members, k, batch, rounds).both + rounds * machine.envelope)
    return (
        rounds * (machine.round_trip + members * machine.call)
        + moved / machine.bandwidth
        + members * batch * machine.union
        + batch * machine.search
    )


def dense_overhead(machine: Machine, members: int, batch: int) -> float:
    """The same where every member sends all its logits, in one round, and the driver looks for the top k."""
    moved = members * (dense(batch) + machine.envelope)
    looked = members * batch * (machine.search + machine.union)
    return machine.round_trip + members * machine.call + moved / machine.bandwidth + looked


def forward(machine: Machine, billions: float, bits: int = 16) -> float:
    """Seconds in which a node reads a model's weights once: a step of few rows."""
    return billions * 1e9 * bits / 8 / machine.memory


def drafted(machine: Machine, members: int, k: int, drafts: int, share: float, model: float) -> float:
    """Seconds for each token where the primary drafts.

    Args:
        machine: The cluster.
        members: Of the ensemble.
        k: Candidates that each brings.
        drafts: Tokens of a draft.
        share: How often the others agree with a drafted token.
        model: Seconds of a step of the slowest member, and of the primary.
    """
    kept = drafts if share == 1 else share * (1 - share**drafts) / (1 - share)
    # The primary's draft, the others' reading, perhaps the asked-for logits; a place of a draft is a row of a batch.
    rounds = machine.round_trip + machine.call
    whole = (drafts + 1) * model + rounds + model + overhead(machine, members, k, drafts + 1)
    return whole / (kept + 1)


def main(given: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object of bytes and milliseconds")
    parser.add_argument("--k", type=int, default=10, help="candidates that each member brings")
    parser.add_argument("--round-trip", type=float, default=0.2, help="of the network, in milliseconds")
    parser.add_argument("--gigabits", type=float, default=25.0, help="a second, of the driver's network")
    parser.add_argument("--call", type=float, default=0.25, help="of the driver for each question, in milliseconds")
    parser.add_argument("--rounds", type=int, choices=(1, 2), default=2, help="1 where every winner is certain at once")
    parser.add_argument("--memory", type=float, default=3.35, help="terabytes a second that a node reads weights with")
    options = parser.parse_args(given)
    machine = Machine(
        options.round_trip / 1000,
        options.gigabits * 1e9 / 8,
        options.call / 1000,
        memory=options.memory * 1e12,
        rounds=options.rounds,
    )
    if options.json:
        print(json.dumps(_figures(machine, options.k), indent=1))
    else:
        print("\n\n".join("\n".join(table) for table in _tables(machine, options.k)))
    return 0


def _figures(machine: Machine, k: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for members in (2, 4, 10, 100):
        found[f"bytes_{members}"] = members * traffic(members, k, 1).both
        found[f"overhead_ms_{members}"] = 1000 * overhead(machine, members, k, 1)
        found[f"certain_overhead_ms_{members}"] = 1000 * overhead(replace(machine, rounds=1), members, k, 1)
        found[f"dense_bytes_{members}"] = members * dense(1)
        found[f"dense_overhead_ms_{members}"] = 1000 * dense_overhead(machine, members, 1)
    return found


def _tables(machine: Machine, k: int) -> Iterator[list[str]]:
    yield [
        "| members | batch | union | to and from one member | of all | whole vocabularies of all | times as much |",
        "|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {n} | {batch} | {union_size(n, k)} | {_size(traffic(n, k, batch).both)} | "
            f"{_size(n * traffic(n, k, batch).both)} | {_size(n * dense(batch))} | "
            f"{dense(batch) / traffic(n, k, batch).both:,.0f} |"
            for n in (2, 4, 10, 100)
            for batch in (1, 32)
        ),
    ]
    certain = replace(machine, rounds=1)
    eight, seventy = forward(machine, 8), forward(machine, 70, 4)
    yield [
        "| members | batch | added | added, winners certain | with whole vocabularies | 8B members, 16 bits | "
        "70B members, 4 bits |",
        "|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {n} | {batch} | {1000 * overhead(machine, n, k, batch):.1f} ms | "
            f"{1000 * overhead(certain, n, k, batch):.1f} ms | "
            f"{1000 * dense_overhead(machine, n, batch):,.1f} ms | {_rate(machine, eight, n, k, batch)} | "
            f"{_rate(machine, seventy, n, k, batch)} |"
            for n in (2, 4, 10, 100)
            for batch in (1, 32)
        ),
    ]
    yield [
        "| members | agreement | plain, a token | drafting 4 | drafting 8 | drafting 24 |",
        "|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {n} | {share:.0%} | {1000 * (forward(machine, 8) + overhead(machine, n, k, 1)):.1f} ms | "
            + " | ".join(
                f"{1000 * drafted(machine, n, k, length, share, forward(machine, 8)):.1f} ms" for length in (4, 8, 24)
            )
            + " |"
            for n in (2, 10, 100)
            for share in (0.7, 0.9)
        ),
    ]


def _rate(machine: Machine, model: float, members: int, k: int, batch: int) -> str:
    step = model + overhead(machine, members, k, batch)
    return f"{1000 * step:.1f} ms, {batch / step:,.0f} tokens/s"


def _size(number: float) -> str:
    power = min(3, int(math.log(max(number, 1), 1000)))
    return f"{number / 1000**power:.{0 if power == 0 else 1}f} {('B', 'kB', 'MB', 'GB')[power]}"


if __name__ == "__main__":
    sys.exit(main())
