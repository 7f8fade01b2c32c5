"""A step of members in Ray actors against one in this process: ``python -m benchmarks.cluster_steps``.

The same two models, prompts and settings, in turns; the members' processes are on this machine, so the network is its
own loopback. The models are tiny or small, so that what a cluster adds is most of what there is to see. Ray must not
take anything from the models' cores: on two cores the two members and the driver share them, which is part of what is
added here and of no cluster of several machines. Greedy steps ask for logits only where the winner is not certain,
which depends on the models; drawn ones nearly always do. What is not here: networks; for these see
``benchmarks.vllm``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ray
import torch

from benchmarks._decoding import BATCH, K, Work, by_ensemble
from benchmarks._measure import Figure, Timer, arguments, peak_memory, progress, ratio, spread, tell
from benchmarks._models import MIDDLE, TINY, made_up_tokenizer, random_member
from ensemble import Ensemble
from ensemble.common.background import in_background
from ensemble.decode.settings import MAX_DRAFT_TOKENS
from ensemble.distributed.ray_cluster import cluster

if TYPE_CHECKING:
    from ensemble.distributed.ray_member import RayMember

STEP_LIMIT = "at most 3"
NAMES = ("sure", "unsure")
KEYS = (
    "added_ms_per_step",
    f"added_ms_per_step_batch{BATCH}",
    f"bare_calls_ms_batch{BATCH}",
    "added_ms_per_step_drawn",
    "added_ms_per_token_drafted",
    "ray_over_local",
    f"ray_over_local_batch{BATCH}",
    "ray_over_local_drawn",
    "ray_over_local_drafted",
    "calls_per_step",
    "calls_per_step_drawn",
    "sent_bytes_per_step",
    "received_bytes_per_step",
    "sent_bytes_per_step_drawn",
    "received_bytes_per_step_drawn",
    "same_texts",
)
"""What is always in the JSON object; null where it cannot be measured."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print it, keep it where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--ids", type=int, default=32_000, help="of each vocabulary")
    parser.add_argument("--middle", action="store_true", help="models of middle size in place of tiny ones")
    parser.add_argument("--ray-address", default=None, help="of a cluster; one is started on this machine without")
    options = parser.parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as place:
        folders = _models(Path(place), options)
        progress("benchmarks.cluster_steps: starting the cluster")
        with cluster(options.ray_address):
            figures = _measure(folders, Path(place), options)
    figures.append(Figure("peak_memory_mib", peak_memory(), note="this process, with both members in it too"))
    there = {figure.name for figure in figures}
    figures += [Figure(key, None, note="not measured here") for key in KEYS if key not in there]
    tell("cluster_steps", figures, options)
    return 0


def _models(place: Path, options: argparse.Namespace) -> list[Path]:
    shape, ids = (MIDDLE if options.middle else TINY), 2000 if options.quick else options.ids
    folders = []
    for name in NAMES:
        tokenizer = made_up_tokenizer(ids, name)
        member = random_member(name, tokenizer, 64 * -(-ids // 64), shape, sure=name == NAMES[0])
        member.local.model.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
        folders.append(place / name)
    return folders


def _measure(folders: Sequence[Path], place: Path, options: argparse.Namespace) -> list[Figure]:
    local, apart = (
        Ensemble.from_pretrained(folders, engine=engine, k=K, cache_dir=place / "tables") for engine in ("local", "ray")
    )
    prompts = [f"Tell me something about the number {n}, in as few words as you can." for n in range(BATCH)]
    work = Work(prompts, 1 if options.quick else 4, 4 if options.quick else 48)
    kinds = {
        "": (1, 0, 0.0),
        f"_batch{BATCH}": (BATCH, 0, 0.0),
        "_drawn": (1, 0, 1.0),
        "_drafted": (1, MAX_DRAFT_TOKENS, 0.0),
    }
    parts: dict[str, Callable[[], int]] = {}
    for end, (batch, draft, temperature) in kinds.items():
        for name, one in (("local", local), ("ray", apart)):
            parts[f"{name}{end}"] = by_ensemble(one, work, batch=batch, draft=draft, temperature=temperature)
    parts["bare"] = _bare_calls(apart, work)
    progress("benchmarks.cluster_steps: decoding")
    times = Timer(options.rounds or (1 if options.quick else 7), options.clock)(parts)
    note = f"two models of {local.members[0].vocabulary.size:,} ids, on one machine"
    figures = []
    for end, (batch, *_) in kinds.items():
        # A batch's units are its rows' tokens: a step of the batch is as many of them as it has rows.
        added = [
            1000 * batch * (far - near) for near, far in zip(times[f"local{end}"], times[f"ray{end}"], strict=True)
        ]
        name = "added_ms_per_token_drafted" if end == "_drafted" else f"added_ms_per_step{end}"
        figures.append(spread(name, added, limit="" if end == "_drafted" else STEP_LIMIT, note=note))
        figures.append(ratio(f"ray_over_local{end}", times[f"ray{end}"], times[f"local{end}"], note=note))
        near = [1000 * batch * seconds for seconds in times[f"local{end}"]]
        unit = "token_drafted" if end == "_drafted" else f"step{end}"
        figures.append(spread(f"local_ms_per_{unit}", near, note=note))
    bare = [1000 * seconds for seconds in times["bare"]]
    figures.append(spread(f"bare_calls_ms_batch{BATCH}", bare, note="of as many bytes to two workers that do nothing"))
    return [*figures, *_moved(apart, work), _same(local, apart, work)]


class _Echo:
    """A worker that does nothing but answer."""

    def answer(self, request: bytes, size: int) -> bytes:  # noqa: ARG002  # it is only sent
        return bytes(size)


def _bare_calls(apart: Ensemble, work: Work) -> Callable[[], int]:
    """What Ray alone takes of a step of a batch: a call of each worker, from threads as those of a request."""
    calls, sent, received = _traffic(apart, work, 0.0, BATCH)
    data, size = bytes(round(sent / calls)), round(received / calls)
    workers = [ray.remote(_Echo).options(num_cpus=0, enable_task_events=False).remote() for _ in apart.members]

    def ask(worker: Any) -> bytes:
        answer: bytes = ray.get(worker.answer.remote(data, size))
        return answer

    def part() -> int:
        for _ in range(2 * work.tokens):
            for future in [in_background(partial(ask, worker), "bare call") for worker in workers]:
                future.result()
        return 2 * work.tokens

    return part


def _moved(apart: Ensemble, work: Work) -> list[Figure]:
    """What a step of one text says to and hears from a member, prompts included."""
    note = "of one text and one member, without Ray's envelopes"
    calls, sent, received = _traffic(apart, work, 0.0, 1)
    drawn, drawn_sent, drawn_received = _traffic(apart, work, 1.0, 1)
    return [
        Figure("calls_per_step", calls, note=note),
        Figure("sent_bytes_per_step", sent, note=note),
        Figure("received_bytes_per_step", received, note=note),
        Figure("calls_per_step_drawn", drawn, note=note),
        Figure("sent_bytes_per_step_drawn", drawn_sent, note=note),
        Figure("received_bytes_per_step_drawn", drawn_received, note=note),
    ]


def _traffic(apart: Ensemble, work: Work, temperature: float, batch: int) -> list[float]:
    """Calls, bytes sent and bytes received, for each step of a text and member."""
    clients = [cast("RayMember", member).server for member in apart.members]
    before = [(one.calls, one.sent, one.received) for one in clients]
    steps = by_ensemble(apart, work, batch=batch, temperature=temperature)() * len(clients)
    after = [(one.calls, one.sent, one.received) for one in clients]
    return [sum(late[n] - early[n] for early, late in zip(before, after, strict=True)) / steps for n in range(3)]


def _same(local: Ensemble, apart: Ensemble, work: Work) -> Figure:
    own, far = (one.generate(work.prompts, max_new_tokens=work.tokens, batch_size=BATCH) for one in (local, apart))
    return Figure("same_texts", float(own == far), note="1 where all texts are the same")


if __name__ == "__main__":
    sys.exit(main())
