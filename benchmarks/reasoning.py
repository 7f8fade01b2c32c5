"""Models that think, on the answers of real ones: ``python -m benchmarks.reasoning``.

The log is that of 34 models on 160 questions of lineage-bench (2025), with the characters of answers and thinking, the
output tokens, and why each response ended. No model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from advisor.advice.cut_off import ENOUGH, enough_tokens, finished_accuracy
from advisor.compare.pairs import pairs_of_standings
from advisor.logs.join import join_logs
from advisor.records import Limits, Profile, length_ratio, within
from benchmarks._measure import Figure, arguments, progress, spread, tell

_ENDED = 0.8
_FEW_CUT = 0.02
"""The share of cut-off responses up to which the true lengths count as known."""
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
    tell("reasoning", [*length_figures(profiles), *cut_off_figures(profiles), *enough_figures(profiles)], options)
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
        Figure("pairs_at_gap", sum(within(limits.max_gap, pair.gap) for pair in pairs), note="exactly at the limit"),
        *(
            Figure(
                f"pairs_pass_by_{unit}",
                sum(ratio is not None and within(ratio, limits.max_length_ratio) for ratio in own),
                note=f"pairs within {limits.max_gap:g} points that pass the length rule by {unit}",
            )
            for unit, own in ratios.items()
        ),
    ]


def cut_off_figures(profiles: Sequence[Profile]) -> list[Figure]:
    """The model with the most cut-off responses: its points on all of them, and on those that ended."""
    most = max(profiles, key=lambda profile: profile.truncated)
    return [
        Figure("models_cut_off", sum(profile.truncated > 0 for profile in profiles)),
        Figure("most_cut_off", most.truncated, note=f"responses of {most.model}"),
        Figure("most_cut_off_accuracy", most.accuracy),
        Figure("most_cut_off_finished_accuracy", finished_accuracy(most)),
        Figure("most_cut_off_enough_tokens", enough_tokens(most)),
    ]


def enough_figures(profiles: Sequence[Profile]) -> list[Figure]:
    """The tokens that are estimated to be enough for 95% over those that are, where four fifths end below a limit."""
    ratios = []
    for profile in profiles:
        lengths = sorted(answer.tokens for answer in profile.answers if answer.tokens)
        if profile.truncated > _FEW_CUT * len(lengths):
            continue
        limit, true = lengths[int(_ENDED * len(lengths)) - 1], lengths[int(ENOUGH * len(lengths)) - 1]
        short = [
            replace(
                answer, tokens=min(answer.tokens, limit), finish_reason="length" if answer.tokens > limit else "eos"
            )
            for answer in profile.answers
        ]
        if (found := enough_tokens(replace(profile, answers=tuple(short)))) is not None:
            ratios.append(found / true)
    note = f"of {len(ratios)} models with 80% of their responses within the limit, estimated over true"
    return [spread("enough_tokens_ratio", ratios, note=note)] if ratios else []


if __name__ == "__main__":
    raise SystemExit(main())
