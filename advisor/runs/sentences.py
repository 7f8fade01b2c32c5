"""Figures of a run as sentences, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.records import join
from advisor.runs.schema.figures import HeadToHead, JudgedSplit, JudgeSection, JudgeShare
from advisor.runs.schema.result import GroupFigures, Result
from ensemble.common import text


def ceiling_in_words(result: Result) -> str:
    """What votes and routers of a run's models can gain at most; empty if that is not known."""
    ceiling = result.advice.ceiling
    if ceiling is None:
        return ""
    most, here = text.points(ceiling.points_ci[1]), text.points(ceiling.points)
    every = f" No model is right on {text.points(ceiling.all_wrong)}% of the questions."
    if ceiling.all_wrong == 0:
        every = " On each question at least one model is right."
    if result.is_graded:
        every = ""
    return (
        f"No vote or router of these models can gain more than {most} points over the best single model (95%; "
        f"{here} on these {text.counted(ceiling.n, 'question')}).{every}"
    )


_MOST_NAMED = 3
_LONGEST_NAME = 60
_ENOUGH = 0.8
"""The share of all gains that the named groups should have together."""
_MOST = 0.5
"""The share above which the named groups have most of the gain."""


def source_of_gain(groups: Sequence[GroupFigures]) -> str:
    """Name the groups of questions that give most of the gain, and count those that lose; empty without a gain."""
    sizes = {each.group: each.n * (each.gain or 0.0) for each in groups}
    # The estimate alone, which is shrunk towards the overall gain, is no gain of a group that measured none.
    gaining = sorted(
        (each for each in groups if sizes[each.group] > 0 and (each.observed is None or each.observed > 0)),
        key=lambda each: -sizes[each.group],
    )
    if len(groups) < 2 or not gaining or sum(sizes.values()) <= 0:
        return ""
    every, named, share = sum(sizes[each.group] for each in gaining), list[GroupFigures](), 0.0
    while share < _ENOUGH and len(named) < min(_MOST_NAMED, len(gaining)):
        named.append(gaining[len(named)])
        share += sizes[named[-1].group] / every
    names = join([f"{text.shortened(each.group, _LONGEST_NAME)} ({text.difference(each.gain)})" for each in named])
    part = "most of it" if share > _MOST else "the largest part"
    comes = "comes mostly from" if share >= _ENOUGH else f"is spread over {len(gaining)} groups, {part} in"
    losing = [each for each in groups if text.is_loss(each.gain)]
    proven = sum(each.shown == "no" for each in losing)
    losses = f"; {len(losing)} of {len(groups)} groups lose" if losing else ""
    return f"The gain {comes} {names}{losses}{f', {proven} of them by more than chance' if proven else ''}."


def on_split(judge: JudgeSection, split: JudgedSplit) -> list[str]:
    """How far the judge can be trusted, from its verdicts on a split."""
    # The second judge is named in the sentences on agreement.
    second = judge.judges[1] if len(judge.judges) > 1 else "the second judge"
    return [*(_on_pairs if judge.mode == "pairwise" else _on_grades)(split, second)]


def on_strategy(met: HeadToHead) -> str:
    """How often the responses of a strategy win against those of the best single model."""
    return (
        f"{met.title}: wins {text.points(met.win_rate)}% against {met.rival} ({text.interval(met.win_rate_ci)}) on "
        f"{text.counted(met.questions, 'question')}."
    )


def _on_pairs(split: JudgedSplit, second: str) -> Iterator[str]:
    yield (
        f"The judge gave {text.counted(split.verdicts, 'verdict')} on two responses"
        + (f"; {split.unread:,} of them cannot be read and count as ties" if split.unread else "")
        + (
            f"; {text.counted(split.settled, 'comparison')} needed no judge (equal texts, failed responses)"
            if split.settled
            else ""
        )
        + "."
    )
    if split.first_wins and split.first_wins.n:
        wins = _share(split.first_wins)
        yield f"Position: the first response wins {wins} decided verdicts; 50% would be no preference."
    if split.changed and split.changed.n:
        yield f"Order: if it changes, the verdict changes on {_share(split.changed)} pairs."
    if split.longer_wins and split.longer_wins.n:
        yield (
            f"Length: the longer response wins {_share(split.longer_wins)} decided verdicts; it may also be the better "
            "one."
        )
    if split.ties and split.ties.n:
        yield f"Ties: {_share(split.ties)} verdicts."
    agreement = split.agreement
    if agreement and agreement.n:
        # Not defined if both always say the same one thing.
        kappa = "" if agreement.kappa is None else f", Cohen’s kappa {text.decimals(agreement.kappa)}"
        equal = text.points(agreement.equal)
        yield f"Agreement: {second} says the same in {equal}% of {agreement.n:,} verdicts{kappa}."


def _on_grades(split: JudgedSplit, second: str) -> Iterator[str]:
    yield f"The judge graded {text.counted(split.verdicts, 'response')}" + (
        f"; {split.unread:,} of its grades cannot be read." if split.unread else "."
    )
    length, agreement = split.length, split.agreement
    if length and length.spearman is not None:
        yield (
            f"Length: Spearman’s correlation of length and grade is {text.decimals(length.spearman)} on "
            f"{text.counted(length.n, 'response')}; longer ones may also be better."
        )
    if agreement and agreement.n:
        known = (("Spearman’s correlation", agreement.spearman), ("Kendall’s tau", agreement.kendall))
        ranks = "".join(f", {name} {text.decimals(value)}" for name, value in known if value is not None)
        yield (
            f"Agreement: {second} is within one grade on {text.points(agreement.within_one)}% of {agreement.n:,} "
            f"responses{ranks}."
        )


def _share(share: JudgeShare) -> str:
    """A share in words: ``62.0% (50.1 to 72.4) of 36``."""
    return f"{text.points(share.share)}% ({text.interval(share.share_ci)}) of {share.n:,}"
