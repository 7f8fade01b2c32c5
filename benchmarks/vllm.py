"""Ensembles of members behind real vLLM servers: ``make test-vllm``, or ``python -m benchmarks.vllm``.

Servers of the demo's models run on this machine, in float32. Ensembles of them must write what the same models write
when this process loads them. Times are ratios to vLLM that serves the primary alone, and are taken in turns. The last
line says how many figures are within their limits; where one is not, the exit status is 1.

``--record FILE`` measures nothing. It keeps some requests to two servers and their answers, which the tests replay.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks._decoding import BATCH
from benchmarks._measure import Figure, Timer, arguments, progress, ratio, spread, tell
from benchmarks._models import demo_prompts
from benchmarks._proxies import delayed, recorded
from benchmarks._vllm_environment import executable
from benchmarks._vllm_equality import PLAIN, TOKENS, Requests, equality, generations, remote
from benchmarks._vllm_servers import VllmProcess, post, serving
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import UniteError

PAIR = ("terse-llama", "terse-mistral")
CLIENTS = 64
ROUND_TRIP_S = 0.02
KEYS = (
    *("differences", "differences_free", "differences_kinds", "second_per_step"),
    *("drafted_over_alone", "requests_per_token", f"batch{BATCH}_over_alone", f"batch{BATCH}_requests_per_token"),
    *("delayed_over_plain"),
)
"""The figures that have limits."""
RECORDED_TOKENS = 20
RECORDED_OPTIONS = (" 7",)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done.

    Attributes:
        prompts: Prompts of the comparison with local decoding.
        steps: Steps of unsure text, at least.
        kinds: Prompts for tokenizers of four kinds.
        texts: Texts that are timed in batches.
        alone: Texts that are timed one at a time.
        rounds: How often each part is timed.
    """

    prompts: int
    steps: int
    kinds: int
    texts: int
    alone: int
    rounds: int


FULL = Size(prompts=200, steps=2000, kinds=100, texts=64, alone=16, rounds=5)
QUICK = Size(prompts=4, steps=40, kinds=4, texts=20, alone=4, rounds=1)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print it, keep it where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this part; can be given several times")
    parser.add_argument("--pair", nargs=2, default=PAIR, metavar="NAME", help="the demo's models of the two members")
    parser.add_argument("--record", type=Path, metavar="FILE", help="measure nothing, keep exchanges in FILE")
    options = parser.parse_args(given)
    executable()
    torch.set_num_threads(options.threads or 1)
    # Servers are stopped by the blocks that started them, which an exception ends and a signal does not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    size = QUICK if options.quick else FULL
    figures: list[Figure] = []
    failed = 0
    with serving(options.pair) as servers:
        if options.record:
            record(servers, options.record)
            return 0
        for name in options.only or SECTIONS:
            progress(f"benchmarks.vllm: {name}")
            try:
                figures += SECTIONS[name](servers, size, Timer(options.rounds or size.rounds, options.clock))
            except (UniteError, OSError, RuntimeError) as error:
                # The other parts are measured all the same.
                progress(f"benchmarks.vllm: {name} failed: {error}")
                failed += 1
    tell("vllm", figures, options)
    held = sum(figure.held for figure in figures if figure.limit)
    wanted = len([figure for figure in figures if figure.limit]) if options.only else len(KEYS)
    print(f"{held} of {wanted} held", file=sys.stderr if options.json else sys.stdout)
    return 0 if held == wanted and not failed else 1


def equal(servers: Sequence[VllmProcess], size: Size, _timer: Timer) -> list[Figure]:
    """The same texts as local decoding."""
    return equality(servers, size.prompts, size.steps, size.kinds)


def cost(servers: Sequence[VllmProcess], size: Size, timer: Timer) -> list[Figure]:
    """The time of a token against vLLM with the primary alone, and requests."""
    ensemble, primary, texts = remote(servers), servers[0], demo_prompts(size.texts)
    few = texts[: size.alone]
    one, batch = partial(_written, ensemble, few, Batch(1)), partial(_written, ensemble, texts, Batch(BATCH))
    times = timer(
        {
            "alone 1": partial(_alone, primary, few, 1),
            "plain 1": partial(_written, ensemble, few, PLAIN),
            "drafted 1": one,
            f"alone {BATCH}": partial(_alone, primary, texts, BATCH),
            f"plain {BATCH}": partial(_written, ensemble, texts, Batch(BATCH, 0)),
            f"drafted {BATCH}": batch,
        }
    )
    counted = []
    for part in (one, batch):
        requests = Requests(ensemble)
        tokens = part()
        counted.append(requests.all / tokens)
    note = f"{' + '.join(server.name for server in servers)}, one text at a time; vLLM serves {primary.name} alone"
    noted = f"{BATCH} texts at a time; vLLM gets them in one request"
    alone, alone_batch = times["alone 1"], times[f"alone {BATCH}"]
    return [
        ratio("drafted_over_alone", times["drafted 1"], alone, limit="at most 2", note=note),
        ratio("plain_over_alone", times["plain 1"], alone, note=note),
        Figure("requests_per_token", counted[0], limit="at most 0.25", note="one text at a time, all members"),
        spread("alone_ms_per_token", [1000 * seconds for seconds in alone]),
        ratio(f"batch{BATCH}_over_alone", times[f"drafted {BATCH}"], alone_batch, limit="at most 3.5", note=noted),
        ratio(f"batch{BATCH}_plain_over_alone", times[f"plain {BATCH}"], alone_batch, note=noted),
        Figure(f"batch{BATCH}_requests_per_token", counted[1], limit="at most 0.03", note=f"{noted}, all members"),
        spread(f"batch{BATCH}_alone_ms_per_token", [1000 * seconds for seconds in alone_batch], note=noted),
    ]


def _written(ensemble: Ensemble, prompts: Sequence[str], batch: Batch) -> int:
    """Let an ensemble write; returns its tokens, EOS included."""
    return sum(one.counts.steps for one in generations(ensemble, prompts, Settings(TOKENS), batch))


def _alone(server: VllmProcess, prompts: Sequence[str], texts: int) -> int:
    """Let a server write, so many texts in a request; returns its tokens."""
    written = 0
    with server.client() as client:
        for start in range(0, len(prompts), texts):
            body = {"prompt": list(prompts[start : start + texts]), "max_tokens": TOKENS, "temperature": 0}
            answer = post(client, {"model": server.name, **body})
            written += int(answer["usage"]["completion_tokens"])
    return written


def delay(servers: Sequence[VllmProcess], size: Size, timer: Timer) -> list[Figure]:
    """Drafts where the servers are far away."""
    few = demo_prompts(size.alone)
    with ExitStack() as stack:
        ports = [stack.enter_context(delayed(server.port, ROUND_TRIP_S / 2)) for server in servers]
        ensemble = remote(servers, ports)
        ways = {"plain": PLAIN, "drafted": Batch(1)}
        times = timer({name: partial(_written, ensemble, few, batch) for name, batch in ways.items()})
    note = f"one text at a time, {1000 * ROUND_TRIP_S:.0f} ms added to each round trip"
    return [
        ratio("delayed_over_plain", times["drafted"], times["plain"], limit="at most 0.4", note=note),
        spread("delayed_plain_ms_per_token", [1000 * seconds for seconds in times["plain"]], note=note),
    ]


SECTIONS: dict[str, Callable[[Sequence[VllmProcess], Size, Timer], list[Figure]]] = {
    "cost": cost,
    "delay": delay,
    "equal": equal,
}


def record(servers: Sequence[VllmProcess], path: Path) -> None:
    """Keep what an ensemble and the servers say to each other: the probe, a short text, a choice, chosen ids."""
    exchanges: list[list[dict[str, Any]]] = [[] for _ in servers]
    prompt = demo_prompts(1)[0]
    with ExitStack() as stack:
        ports = [
            stack.enter_context(recorded(*pair)) for pair in zip((s.port for s in servers), exchanges, strict=True)
        ]
        ensemble = remote(servers, ports)
        [plain] = generations(ensemble, [prompt], Settings(RECORDED_TOKENS), PLAIN)
        scores = ensemble.score(prompt, RECORDED_OPTIONS)
    kept = {
        "server": "vLLM 0.32.0",
        "prompt": prompt,
        "max_tokens": RECORDED_TOKENS,
        "text": plain.text,
        "options": RECORDED_OPTIONS,
        "scores": scores,
        "members": [
            {"model": server.name, "exchanges": found} for server, found in zip(servers, exchanges, strict=True)
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, separators=(",", ":")) + "\n", encoding="utf-8")
    progress(f"benchmarks.vllm: {sum(map(len, exchanges))} exchanges, {path.stat().st_size / 1000:.0f} kB in {path}")


if __name__ == "__main__":
    sys.exit(main())
