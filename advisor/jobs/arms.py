"""The arms of a fusion: what the same money buys otherwise, asked on the held-out questions.

The models' own answers and the fusion are there already. New are responses of the best single model, until they cost
what the fusion costs; drafts of the writer, until they cost what the panel's cost; and the cheapest model. All stay in
the cache, so another panel or writer asks only for what is new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from advisor.advice.arms import FUSION, Arm, ArmResult, ArmsComparison, compare_arms, cost_in, unit_of
from advisor.compare.paired import MARGIN
from advisor.config import RunConfig
from advisor.jobs.fused import draws_worth, fuse, total
from advisor.jobs.held_out import ChosenSet, prices_of
from advisor.judge.judge import Judge
from advisor.judge.verdicts import Grade, Match, name_of_set
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import ArmCode, ArmReason, Cost, Profile, signed
from advisor.runs.schema.arms import ArmFigures, ArmsSection, LeftOutArm
from advisor.strategies.fusion import Fusion
from advisor.strategies.self_consistency import SelfConsistency
from advisor.strategies.strategy import FEWEST_VOTERS
from advisor.strategies.vote import Vote
from advisor.strategies.vote_reader import can_vote
from advisor.tasks.task import Task, clusters_of
from ensemble.common.text import counted, interval_name, p_value
from ensemble.errors import MemberError

_UNITS = {"dollars": "dollars", "tokens": "tokens", "calls": "number of calls"}


class _LeftOut(Exception):  # noqa: N818  # no error: the other arms go on
    """An arm cannot be compared."""

    def __init__(self, code: ArmReason, reason: str) -> None:
        self.code: ArmReason = code
        super().__init__(reason)


def run_arms(
    config: RunConfig, chosen: ChosenSet, best: str, profiler: Profiler, judge: Judge | None, progress: Progress
) -> ArmsSection | None:
    """Ask the other arms of the fusion of a run, and compare them.

    Args:
        config: The run, with its held-out questions.
        chosen: What was asked before: the models' own answers, and the fusion.
        best: The best single model.
        profiler: Asks the models.
        judge: The judge of the run; None for a task without one.
        progress: Shows notes.

    Returns:
        The section of the result; None if there is no fusion, or nothing to compare it with.

    Raises:
        JudgeError: A judge failed.
    """
    if config.held_out is None or not chosen.fused:
        return None
    asking = _Asking(config, config.held_out, chosen, best, profiler, judge)
    # The gains are over the best single model, which comes first.
    arms, left_out = [asking.alone("single", best), asking.fusion], list[LeftOutArm]()
    asked: dict[ArmCode, Callable[[], Arm]] = {
        "best_of_n" if judge else "self_consistency": asking.best_of_n if judge else asking.self_consistency,
        "vote": asking.vote,
        "self_fusion": asking.self_fusion,
        "cheapest": asking.cheapest,
    }
    for code, ask in asked.items():
        try:
            arms.append(ask())
        except _LeftOut as reason:
            left_out.append(LeftOutArm(arm=code, reason_code=reason.code, reason=str(reason)))
        except MemberError as error:
            progress.say(f"--arms, {code}: {error}")
            left_out.append(LeftOutArm(arm=code, reason_code="failed", reason=str(error)))
    margin = MARGIN if config.rules.min_gain is None else config.rules.min_gain
    compared = compare_arms(
        arms,
        unit=asking.unit,
        prices=asking.prices,
        clusters=clusters_of(config.held_out),
        alpha=config.alpha,
        margin=margin,
        seed=config.seed,
    )
    return _section(compared, tuple(left_out), len(config.held_out.examples), config.confidence)


class _Asking:
    """Asks the arms; see :func:`run_arms`."""

    def __init__(
        self, config: RunConfig, task: Task, chosen: ChosenSet, best: str, profiler: Profiler, judge: Judge | None
    ) -> None:
        self._config, self._task, self._chosen, self._best = config, task, chosen, best
        self._profiler, self._judge = profiler, judge
        ((self._fusion, made),) = chosen.fused.items()
        self._written = made.calls[-1][1].cost
        self.prices = prices_of(config) | {each.name: each.price for each in config.judges if each.price is not None}
        self.unit = unit_of({**made.spent, best: chosen.alone[best].cost}, self.prices)
        calls = len(self._fusion.panel) * self._fusion.draws * self._fusion.rounds + 1
        models = *self._fusion.panel, self._fusion.writer
        self.fusion = self._arm(FUSION, models, made.profile, made.spent, calls, self._fusion.draws)
        self._budget = cost_in(self.unit, made.spent, calls * len(task.examples), self.prices) or 0.0

    def alone(self, code: ArmCode, name: str) -> Arm:
        """One model with one response."""
        profile = self._chosen.alone.get(name) or self._profiler.alone([name], self._task).get(name)
        if profile is None:
            raise _LeftOut("failed", f"{name} failed: {self._profiler.failures[name]}")
        return self._arm(code, (name,), profile, {name: profile.cost}, 1)

    def cheapest(self) -> Arm:
        """The candidate whose answers to the dev questions cost least."""
        n = len(self._config.dev.examples)
        costs = {
            name: cost
            for name, profile in self._chosen.pool.complete.items()
            if (cost := cost_in(self.unit, {name: profile.cost}, n, self.prices)) is not None
        }
        name = min(costs, key=costs.__getitem__, default=self._best)
        if costs.get(name) == costs.get(self._best):
            raise _LeftOut("same", f"no candidate costs less than {self._best}, the best single model")
        return self.alone("cheapest", name)

    def vote(self) -> Arm:
        """The answer that most models of the panel give."""
        panel = self._fusion.panel
        self._check_counts()
        if len(panel) < FEWEST_VOTERS:
            raise _LeftOut("few_voters", f"a vote takes {FEWEST_VOTERS} models, and the panel has {len(panel)}")
        own = [self._chosen.alone[name] for name in panel]
        profile = Vote(panel).apply(own, self._task)
        return self._arm("vote", panel, profile, {each.model: each.cost for each in own}, len(panel))

    def self_consistency(self) -> Arm:
        """The answer that most responses of the best single model have."""
        self._check_counts()
        drawn = self._of_best(lambda each: self._cost(each.cost))
        profile = SelfConsistency((self._best,), len(drawn)).apply(drawn, self._task)
        cost = total([each.cost for each in drawn])
        return self._arm("self_consistency", (self._best,), profile, {self._best: cost}, len(drawn), len(drawn))

    def best_of_n(self) -> Arm:
        """The response of the best single model that the second judge prefers; the first judge scores it.

        The judge that scores would find its own choice good. The verdicts of the second one cost money, too.
        """
        judge = self._judge
        if judge is None or len(judge.names) < 2:
            raise _LeftOut("no_judge", "who scores the answers may not choose them; add --check-judge, which chooses")
        second, graded, verdicts = judge.names[1], list[Profile](), list[Cost]()
        if self.unit == "dollars" and second not in self.prices:
            raise _LeftOut("unknown_cost", f"{second} has no price; give price_in= and price_out= on its line")

        def cost(draw: Profile) -> float:
            before = len(judge.costs[second])
            named = replace(draw, model=f"{self._best}, draw {1 + len(graded)}")
            graded.append(self._profiler.graded(named, [self._best], self._task))
            new = judge.costs[second][before:]
            verdicts.extend(new)
            # Equal texts are not judged again.
            return self._cost(draw.cost) + (self._cost(total(new), second) if new else 0.0)

        drawn = self._of_best(cost)
        given = judge.verdicts(self._task.split)[1]
        said = [_mean_verdicts(given, name_of_set(each.model, [self._best])) for each in graded]
        answers = []
        for n, example in enumerate(self._task.examples):
            place = max(range(len(said)), key=lambda draw: said[draw].get(example.id, -1.0))
            answers.append(graded[place].answers[n])
        costs = {self._best: total([each.cost for each in drawn]), second: total(verdicts)}
        profile = Profile("best_of_n", tuple(answers))
        return self._arm("best_of_n", (self._best,), profile, costs, 2 * len(drawn), len(drawn))

    def self_fusion(self) -> Arm:
        """The writer with its own drafts, which cost as much as those of the panel; it then reads about as much."""
        fusion = self._fusion
        if fusion.panel == (fusion.writer,):
            raise _LeftOut("same", "the fusion has the drafts of its writer alone")
        writer, seed = fusion.writer, self._config.seed
        budget = self._budget - self._cost(self._written, writer)
        first = self._cost(self._chosen.alone[writer].cost, writer)
        drafts = [] if first >= budget else self._draws(writer, budget, lambda each: self._cost(each.cost, writer))
        count = max(1, len(drafts))
        own = Fusion.of((writer,), writer, count, 1, fusion.prompt)
        made = fuse(
            self._profiler, own, self._task, self._chosen.alone, seed, f"fusion by {writer} from its own drafts"
        )
        profile = self._profiler.graded(made.profile, own.members, self._task)
        return self._arm("self_fusion", (writer,), profile, made.spent, count + 1, count)

    def _draws(self, model: str, budget: float, cost: Callable[[Profile], float]) -> list[Profile]:
        return draws_worth(self._profiler, model, self._task, self._config.seed, budget, cost)

    def _of_best(self, cost: Callable[[Profile], float]) -> list[Profile]:
        """Responses of the best single model, which cost what the fusion costs."""
        if self._cost(self._chosen.alone[self._best].cost) >= self._budget:
            raise _LeftOut("costs_more", f"one response of {self._best} costs as much as the fusion")
        return self._draws(self._best, self._budget, cost)

    def _cost(self, cost: Cost, name: str = "") -> float:
        """What one response of a model to each question costs; of the best single model without a name."""
        own = cost_in(self.unit, {name or self._best: cost}, len(self._task.examples), self.prices)
        if own is None:
            raise _LeftOut("unknown_cost", f"what responses of {name or self._best} cost is not known")
        return own

    def _check_counts(self) -> None:
        if not can_vote(self._task):
            raise _LeftOut("no_vote", "the responses have no extracted answers that a vote can count")

    def _arm(
        self,
        code: ArmCode,
        models: tuple[str, ...],
        profile: Profile,
        costs: Mapping[str, Cost],
        calls: int,
        draws: int = 1,
    ) -> Arm:
        if cost_in(self.unit, costs, calls, self.prices) is None:
            raise _LeftOut("unknown_cost", f"what it costs in {self.unit} is not known")
        return Arm(code, models, draws, profile, costs, calls)


def _mean_verdicts(verdicts: Sequence[Grade | Match], name: str) -> dict[str, float]:
    """What a judge says of one model's responses, 0 to 1, by the questions' ids; without those that cannot be read."""
    said: dict[str, list[float]] = defaultdict(list)
    for each in verdicts:
        if each.score is None:
            continue
        if isinstance(each, Grade):
            if each.model == name:
                said[each.question].append(each.score)
        elif name in (each.first, each.second):
            said[each.question].append(each.score if each.first == name else 1 - each.score)
    return {question: sum(own) / len(own) for question, own in said.items()}


def _section(
    compared: ArmsComparison, left_out: tuple[LeftOutArm, ...], questions: int, confidence: float
) -> ArmsSection:
    figures = {each.arm.code: _figures(each, questions) for each in compared.results}
    decided_by = compared.decided_by.arm.code
    return ArmsSection(
        pays=compared.pays,
        decided_by=decided_by,
        questions_needed=compared.questions_needed,
        n=questions,
        unit=compared.unit,
        margin=compared.margin,
        confidence=confidence,
        text=_text(compared, figures[decided_by].title, questions, confidence),
        arms=tuple(figures.values()),
        left_out=left_out,
    )


def _figures(result: ArmResult, questions: int) -> ArmFigures:
    arm, gain, lead = result.arm, result.gain, result.lead
    return ArmFigures(
        arm=arm.code,
        models=arm.models,
        draws=arm.draws,
        accuracy=arm.profile.accuracy,
        accuracy_ci=result.accuracy_ci,
        gain=0.0 if gain is None else gain.estimate,
        gain_ci=(0.0, 0.0) if gain is None else gain.interval,
        lead=None if lead is None else lead.estimate,
        lead_ci=None if lead is None else lead.interval,
        p_two_sided=None if lead is None else lead.p_two_sided,
        p_adjusted=result.p_adjusted,
        calls_per_question=arm.calls,
        cost_per_1000=1000 * result.cost / questions,
    )


def _text(compared: ArmsComparison, rival: str, questions: int, confidence: float) -> str:
    decisive, n = compared.decided_by, counted(questions, "held-out question")
    lead, arms = decisive.lead, len(compared.results) - 1
    if lead is None:
        return ""
    ends = f"{interval_name(confidence)} {' to '.join(map(signed, lead.interval))}"
    over = f"over {rival}, at {100 * decisive.cost / compared.fusion.cost:.0f}% of its {_UNITS[compared.unit]}"
    if compared.pays == "yes":
        return (
            f"The fusion pays: on {n} it is better than each of {counted(arms, 'other arm')}. It leads least {over}: "
            f"{signed(lead.estimate)} points ({ends}; p {p_value(decisive.p_adjusted)} after correction for all arms)."
        )
    if compared.pays == "no":
        most = lead.interval[1]
        gained = f"gains at most {most:.1f} points" if most >= 0 else f"loses at least {-most:.1f} points"
        return (
            f"The fusion does not pay: {over}, it {gained} ({ends}, {n}), and {compared.margin:g} is the least that "
            "pays (--min-gain)."
        )
    needed = compared.questions_needed
    more = "" if needed is None else f" About {needed:,} questions would tell, if the differences are as observed."
    return (
        f"Cannot tell with {n} whether the fusion pays: {over}, its difference is {signed(lead.estimate)} points "
        f"({ends}).{more}"
    )
