"""Figures of a run as sentences, for the terminal and the report."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from advisor.records import ALPHA, MOST_NEEDED, join
from advisor.run.figures import HeadToHead, JudgedSplit, JudgeSection, JudgeShare
from advisor.run.result import GroupFigures, Result, StrategyFigures
from advisor.statistics import z_value
from advisor.strategies import ADVICE
from advisor.strategies.router import Router
from ensemble.common import text

_PROBABILITIES = (0.9, 0.95, 0.97, 0.99)
"""Which of them more labels would reach is said: the first one that is larger."""


def summary(result: Result) -> dict[str, str]:
    """What to run, what it gains, how sure that is, and what it costs: sentences by what they are about.

    The terminal, the first screen of the report, its Markdown and Python have these sentences.
    """
    row, none = result.advice.recommendation, result.advice.no_advice
    if none is not None:
        return {"No advice yet": none.text, "So far": row.text if row else ""}
    if row is None:
        return {"Recommended": "nothing yet, because no strategy was compared on held-out questions."}
    told = {
        "Recommended": row.text,
        "Expected gain": "" if row.is_single else _gain(result, row),
        "Where": "" if row.is_single else source_of_gain(row.groups or ()),
        "Your router": _on_router(result),
        "How sure": _certainty(result, row),
        "Cost": _costs(result, row),
        "At equal cost": _at_equal_cost(result, row),
    }
    return {name: sentence for name, sentence in told.items() if sentence}


def _gain(result: Result, row: StrategyFigures) -> str:
    """The expected gain with its interval, and the points before and after it."""
    if row.expected_gain is None or row.best_single_model is None:
        return ""
    ends = row.expected_gain_ci
    interval = f" ({text.interval_name(result.advice.confidence)} {text.difference_interval(ends)})" if ends else ""
    gain = f"{text.difference(row.expected_gain)} points over {row.best_single_model}, the best single model{interval}"
    before, of = result.single_level, "points" if result.is_graded else "right of 100 questions"
    if before is None:
        return f"{gain}."
    return f"{gain}: {text.points(result.level(row))} {of} in place of {text.points(before)}."


def _costs(result: Result, row: StrategyFigures) -> str:
    """What a strategy costs, beside the best single model."""
    alone = result.alone
    if row.is_single or alone is None:
        return _cost(row)
    return f"{_cost(row)}; {alone.title} takes {_cost(alone)}"


def _certainty(result: Result, row: StrategyFigures) -> str:
    """How sure it is that the recommended strategy is better than the best single model."""
    if row.is_single:
        only = "nothing was compared, because this is the only strategy" if len(result.strategies) == 1 else ""
        return _best_of(result, row.members[0]) or only
    return "" if row.probability is None else better_in_words(row)


def better_in_words(row: StrategyFigures) -> str:
    """How sure it is that a strategy is better than the best single model, and how many labels would raise that."""
    sentence = f"better than {row.best_single_model} alone with probability {text.probability(row.probability)}"
    more = _more_labels(row)
    return (
        f"{sentence}." if more is None else f"{sentence}; {more[0]:,} more labels: {more[1]:.2f} if the gain is real."
    )


def _best_of(result: Result, best: str) -> str:
    """How sure it is that a single model is the best one; empty if that is not known."""
    known = {each.model: each for each in result.single_models if each.accuracy_all is not None}
    if best not in known or len(known) < 2:
        return ""
    own, others = known.pop(best), sorted(known.values(), key=lambda each: -(each.accuracy_all or 0.0))
    behind = text.points((own.accuracy_all or 0.0) - (others[0].accuracy_all or 0.0))
    return (
        f"the best of {text.in_words(len(known) + 1)} models with probability "
        f"{text.probability(own.best_probability)}; {others[0].model} is {behind} points behind."
    )


def commands(result: Result, folder: str, question: str, pool: str) -> tuple[str, ...]:
    """The commands that run, serve and check the recommended strategy; else empty.

    Runs on logs need a pool file, because logs have the names of models and not their places.
    """
    own = result.advice.recommendation
    if own is None:
        return ()
    models = "" if result.can_decode else f" --pool {pool}"
    # One of the groups, so that the command works as it stands.
    group = f" --group {shlex.quote(own.key.groups[0])}" if own.key.groups else ""
    return (
        f"advisor run {folder} {question}{group}{models}",
        f"advisor serve {folder}{models}",
        f"advisor check {folder} FILE",
    )


def _on_router(result: Result) -> str:
    """Whether a router pays, beside the best single model, the cheapest one that is as good, and the learned vote."""
    own = next((each for each in result.strategies if each.strategy == Router.KIND), None)
    if own is None:
        return ""

    def points(row: StrategyFigures) -> float:
        return result.level(row) or 0.0

    def cost(row: StrategyFigures) -> float:
        return row.calls_per_question or 0.0 if own.price_per_1000 is None else row.price_per_1000 or math.inf

    others = [each for each in result.strategies if each is not own]
    as_good = [each for each in others if each.is_single and points(each) >= points(own)]
    beside = [
        *(each for each in others if each.is_single and each.members[0] == own.best_single_model),
        *sorted(as_good, key=cost)[:1],
        *(each for each in others if each.strategy == ADVICE),
    ]
    told = [
        f"{row.title} has {text.points(points(row))} points"
        + ("" if row.price_per_1000 is None else f" for {text.price(row.price_per_1000)}")
        for row in {row.title: row for row in (own, *beside)}.values()
    ]
    gain = f"{text.difference(own.expected_gain)} points ({text.difference_interval(own.expected_gain_ci)})"
    better = [row for row in others if points(row) >= points(own) and cost(row) <= cost(own)]
    if better:
        verdict = f"It does not pay: {better[0].title} has as many points for no more"
    elif (own.expected_gain or 0.0) > 0:
        verdict = "It pays"
    else:
        verdict = "It costs less, and has fewer points"
    return f"{join(told)}. {verdict}; over {own.best_single_model} alone it gains {gain}."


def _more_labels(row: StrategyFigures) -> tuple[int, float] | None:
    """How many more labels raise the probability how far, if the expected gain is the true one; None if too many."""
    ends, measured, gain = row.expected_gain_ci, row.measured_gain_ci, row.expected_gain or 0.0
    wanted = next((each for each in _PROBABILITIES if each > (row.probability or 0.0) + 0.01), None)
    if ends is None or measured is None or wanted is None or gain <= 0 or not row.questions:
        return None
    # The prior and the labels have precisions, the inverse of variances, that add up; only that of labels grows.
    now, by_labels = (4 * z_value(ALPHA) ** 2 / max(high - low, 1e-9) ** 2 for low, high in (ends, measured))
    more = math.ceil(row.questions * ((z_value(1 - wanted) / gain) ** 2 - now) / by_labels)
    return (more, wanted) if 0 < more <= MOST_NEEDED else None


def _cost(row: StrategyFigures) -> str:
    number = text.decimals(row.calls_per_question, 1).removesuffix(".0")
    cost = f"{number} {'call' if number == '1' else 'calls'}"
    if row.seconds_per_question is not None:
        cost += f" and {text.duration(row.seconds_per_question)}"
    dollars = row.price_per_1000
    return f"{cost} a question" + ("" if dollars is None else f", {text.price(dollars)} for 1,000 questions")


def _at_equal_cost(result: Result, row: StrategyFigures) -> str:
    """Whether a strategy pays against those that ask one model several times; empty if that was not asked."""
    rivals, told = {each.title: each for each in result.strategies}, []
    for title, (gain, low, high) in (row.over_one_model or {}).items():
        verdict = "pays" if low > 0 else "does not pay" if high < 0 else "is not shown to pay"
        ends = f"{text.interval_name(result.advice.confidence)} {text.difference_interval((low, high))}"
        cost = f"; {_cost(rivals[title])}" if title in rivals else ""
        told.append(f"{verdict} against {title} ({text.difference(gain)} points, {ends}{cost})")
    return f"This {', and '.join(told)}." if told else ""


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
    losses = f"; {len(losing)} of {len(groups)} groups {'loses' if len(losing) == 1 else 'lose'}" if losing else ""
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
