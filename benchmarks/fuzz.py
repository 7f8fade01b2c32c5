"""Changed files and messages against the readers of untrusted input: ``python -m benchmarks.fuzz``.

At least 20,000 inputs of all kinds by default; ``--seconds`` (``make fuzz``) goes on with new seeds for a fixed time.
The seed is printed; the same seed gives the same inputs. Each new failure is kept in ``build/fuzz``: put the shortest
one of each reason into ``tests/fuzz/cases/KIND``, where ``tests/test_fuzz.py`` reads it from then on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from pathlib import Path

from benchmarks._fuzz_readers import offline, warm

RESULT = Path(__file__).with_name("results") / "fuzz.json"
FOUND = Path("build/fuzz")


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit status is 1 if an input did not pass."""
    parser = argparse.ArgumentParser(description="Read changed files and messages, and count what happens.")
    parser.add_argument("--inputs", type=int, default=21_000, help="inputs of all kinds together, at least")
    parser.add_argument("--seconds", type=float, help="go on for this time instead, with new seeds")
    parser.add_argument("--seed", type=int, help="repeat the inputs of an earlier run")
    parser.add_argument("--kinds", help="names with commas between them")
    parser.add_argument("--save", type=Path, help="write the counts to this file")
    given = parser.parse_args(arguments)
    offline()
    from benchmarks import _fuzzing as fuzzing

    kinds = fuzzing.kinds()
    names = given.kinds.split(",") if given.kinds else list(kinds)
    warm(names)
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    # Fast kinds get more inputs, so that none takes most of the time.
    shares = {name: 1 / kinds[name].cost for name in names}
    sizes = {name: max(20, round(given.inputs * share / sum(shares.values()))) for name, share in shares.items()}
    totals: dict[str, dict[str, int]] = {}
    shortest: dict[tuple[str, str], bytes] = {}
    end = None if given.seconds is None else time.monotonic() + given.seconds
    while True:
        for name in names:
            if end is not None and time.monotonic() > end:
                break
            # With a time limit, rounds are short, so that each kind has its turn.
            count = sizes[name] if end is None else max(10, sizes[name] // 50)
            counts, failures = fuzzing.run(name, kinds[name], fuzzing.inputs(kinds[name], name, seed, count))
            totals[name] = {key: totals.get(name, {}).get(key, 0) + value for key, value in counts.items()}
            for failure in failures:
                known = shortest.get((name, failure.reason))
                if known is None or len(failure.data) < len(known):
                    shortest[name, failure.reason] = failure.data
            if end is None:
                print(f"{name:12}", *(f"{key} {value:,}" for key, value in counts.items()), flush=True)
        if end is None or time.monotonic() > end:
            break
        seed += 1
    _print(totals, shortest)
    if given.save:
        sums = {key: sum(counts[key] for counts in totals.values()) for key in next(iter(totals.values()))}
        content = {"command": "python -m benchmarks.fuzz", "seed": seed, "all": sums, "kinds": totals}
        content["failures"] = sorted(f"{name}: {reason}" for name, reason in shortest)
        given.save.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 1 if shortest else 0


def _print(totals: dict[str, dict[str, int]], shortest: dict[tuple[str, str], bytes]) -> None:
    sums = {key: sum(counts[key] for counts in totals.values()) for key in next(iter(totals.values()))}
    print(f"{len(totals)} kinds:", *(f"{key} {value:,}" for key, value in sums.items()))
    for (name, reason), data in sorted(shortest.items()):
        folder = FOUND / name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(reason.encode()).hexdigest()[:12]
        path.write_bytes(data)
        print(f"{name}: {reason}: {len(data):,} bytes in {path}")


if __name__ == "__main__":
    raise SystemExit(main())
