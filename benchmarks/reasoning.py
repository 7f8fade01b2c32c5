"""Models that think, on the answers of real ones: ``python -m benchmarks.reasoning``.

The log is that of 34 models on 160 questions of lineage-bench (2025), with the characters of answers and thinking, the
output tokens, and why each response ended. No model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advisor.compare.pairs import pairs_of_standings
from advisor.logs.join import join_logs
from advisor.records import Limits, Profile, length_ratio, within
from benchmarks._measure import Figure, arguments, progress, tell

LOG = Path(__file__).resolve().parents[2] / "shared" / "pools" / "lineage-2025.table.jsonl.xz"


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--log", type=Path, default=LOG, metavar="FILE", help="the log")
    options = parser.parse_args(given)
    if not options.log.is_file():
        progress(f"benchmarks.reasoning: there is no log {options.log}; without it nothing can be measured")
        return 0
    profiles = list(join_logs([str(options.log)]).profiles.values())
    tell("reasoning", length_figures(profiles), options)
    return 0


def length_figures(profiles: Sequence[Profile]) -> list[Figure]:
    """How many pairs within the gap pass the length rule, by each unit."""
    limits, standings = Limits(), [profile.standing for profile in profiles]
    visible = {each.model: each.mean_length for each in standings}
    pairs = [pair for pair in pairs_of_standings(standings) if within(pair.gap, limits.max_gap)]
    ratios = {
        "characters": [length_ratio(visible[pair.a], visible[pair.b]) for pair in pairs],
        "tokens": [pair.length_ratio for pair in pairs if pair.length_unit == "tokens"],
    }
    return [
        Figure("models", len(standings)),
        Figure("questions", len(profiles[0].answers)),
        Figure("models_that_think", sum(each.thinks for each in standings)),
        Figure("pairs_within_gap", len(pairs)),
        *(
            Figure(
                f"pairs_pass_by_{unit}",
                sum(ratio is not None and within(ratio, limits.max_length_ratio) for ratio in own),
                note=f"pairs within {limits.max_gap:g} points that pass the length rule by {unit}",
            )
            for unit, own in ratios.items()
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
