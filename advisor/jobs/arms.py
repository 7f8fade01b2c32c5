"""The arms of a fusion: what the same money buys otherwise, asked on the held-out questions.

The models' own answers and the fusion are there already. New are responses of the best single model, until they cost
what the fusion costs; drafts of the writer, until they cost what the panel's cost; and the cheapest model. All stay in
the cache, so another panel or writer asks only for what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from advisor.advice.arms import cost_in, decide, leads_of, unit_of
from advisor.compare.paired import MARGIN, PairedScores
from advisor.config import RunConfig
from advisor.jobs.fused import draws_worth, fuse
from advisor.jobs.held_out import ChosenSet, prices_of
from advisor.judge.judge import Judge
from advisor.judge.verdicts import mean_scores, name_of_set
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import ArmCode, ArmReason, Cost, Profile, signed
from advisor.runs.schema.arms import ArmFigures, ArmsSection, LeftOutArm
from advisor.statistics import Difference, scores
from advisor.strategies.fusion import Fusion
from advisor.strategies.self_consistency import SelfConsistency
from advisor.strategies.strategy import FEWEST_VOTERS
from advisor.strategies.vote import Vote
from advisor.strategies.vote_reader import can_vote
from advisor.tasks.task import Task, clusters_of
from ensemble.common.text import counted, interval_name, p_value, share
from ensemble.errors import JudgeError, MemberError

_Arm = tuple[ArmFigures, Profile]
"""What an arm is and what it costs, without a comparison, and its answers."""


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
        judge: The judge of the run; None without one. For a task without a judge it chooses among responses.
        progress: Shows notes.

    Returns:
        The section of the result; None if there is no fusion.
    """
    if config.held_out is None or not chosen.fused:
        return None
    asking = _Asking(config, config.held_out, chosen, best, profiler, judge)
    # The gains are over the best single model, which comes first.
    arms, left_out = [asking.alone("single", best), asking.fused], list[LeftOutArm]()
    asked: dict[ArmCode, Callable[[], _Arm]] = {
        **({} if asking.is_judged else {"self_consistency": asking.self_consistency}),
        **({"best_of_n": asking.best_of_n} if judge else {}),
        "vote": asking.vote,
        "self_fusion": asking.self_fusion,
        "cheapest": asking.cheapest,
    }
    for code, ask in asked.items():
        try:
            arms.append(ask())
        except _LeftOut as reason:
            left_out.append(LeftOutArm(arm=code, reason_code=reason.code, reason=str(reason)))
        except (MemberError, JudgeError) as error:
            progress.say(f"--arms, {code}: {error}")
            left_out.append(LeftOutArm(arm=code, reason_code="failed", reason=str(error)))
    return _section(config, asking, arms, tuple(left_out))


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
        self.is_judged = task.rubric is not None
        calls = len(self._fusion.panel) * self._fusion.draws * self._fusion.rounds + 1
        models = *self._fusion.panel, self._fusion.writer
        self.fused = self._arm("fusion", models, made.profile, made.spent, calls, self._fusion.draws)
        self._budget = cost_in(self.unit, made.spent, calls * len(task.examples), self.prices) or 0.0

    def alone(self, code: ArmCode, name: str) -> _Arm:
        """One model with one response."""
        profile = self._chosen.alone.get(name) or self._profiler.alone([name], self._task).get(name)
        if profile is None:
            raise _LeftOut("failed", f"{name} failed: {self._profiler.failures[name]}")
        return self._arm(code, (name,), profile, {name: profile.cost}, 1)

    def cheapest(self) -> _Arm:
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

    def vote(self) -> _Arm:
        """The answer that most models of the panel give."""
        panel = self._fusion.panel
        self._check_counts()
        if len(panel) < FEWEST_VOTERS:
            raise _LeftOut("few_voters", f"a vote takes {FEWEST_VOTERS} models, and the panel has {len(panel)}")
        own = [self._chosen.alone[name] for name in panel]
        profile = Vote(panel).apply(own, self._task)
        return self._arm("vote", panel, profile, {each.model: each.cost for each in own}, len(panel))

    def self_consistency(self) -> _Arm:
        """The answer that most responses of the best single model have."""
        self._check_counts()
        drawn = self._of_best(lambda each: self._cost(each.cost))
        profile = SelfConsistency((self._best,), len(drawn)).apply(drawn, self._task)
        cost = Cost.total([each.cost for each in drawn])
        return self._arm("self_consistency", (self._best,), profile, {self._best: cost}, len(drawn), len(drawn))

    def best_of_n(self) -> _Arm:
        """The response of the best single model that a judge prefers: of a judged task the second one.

        The judge that scores would find its own choice good. The verdicts cost money, too.
        """
        judge, task = self._judge, self._task
        if judge is None or (self.is_judged and len(judge.names) < 2):
            raise _LeftOut("no_judge", "who scores the answers may not choose them; add --check-judge, which chooses")
        chooser, graded, verdicts = judge.names[-1], list[Profile](), list[Cost]()
        if self.unit == "dollars" and chooser not in self.prices:
            raise _LeftOut("unknown_cost", f"{chooser} has no price; give price_in= and price_out= on its line")

        def cost(draw: Profile) -> float:
            before = len(judge.costs[chooser])
            named = replace(draw, model=f"{self._best}, draw {1 + len(graded)}")
            if self.is_judged:
                graded.append(self._profiler.graded(named, [self._best], task))
            else:
                # The scores stay those of the task's metric.
                judge.grade({name_of_set(named.model, [self._best]): named}, task)
                graded.append(named)
            new = judge.costs[chooser][before:]
            verdicts.extend(new)
            # Equal texts are not judged again.
            return self._cost(draw.cost) + (self._cost(Cost.total(new), chooser) if new else 0.0)

        drawn = self._of_best(cost, " with their verdicts")
        said = mean_scores(judge.verdicts(task.split)[-1])
        names = [name_of_set(each.model, [self._best]) for each in graded]
        answers = []
        for n, example in enumerate(task.examples):
            place = max(range(len(names)), key=lambda draw: said.get((example.id, names[draw]), -1.0))
            answers.append(graded[place].answers[n])
        own = [each.cost for each in drawn]
        costs = {self._best: Cost.total(own), chooser: Cost.total([*(own if chooser == self._best else ()), *verdicts])}
        # A judge that compares reads each response with those of all candidates, in both orders.
        calls = 1 + (2 * len(self._config.candidates) if task.is_relative else 1)
        profile = Profile("best_of_n", tuple(answers))
        return self._arm("best_of_n", (self._best,), profile, costs, calls * len(drawn), len(drawn))

    def self_fusion(self) -> _Arm:
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

    def _arm(
        self,
        code: ArmCode,
        models: tuple[str, ...],
        profile: Profile,
        costs: Mapping[str, Cost],
        calls: int = 1,
        draws: int = 1,
    ) -> _Arm:
        """An arm; ``costs`` are by model, for all questions, and ``calls`` those of a question."""
        n = len(profile.answers)
        cost = cost_in(self.unit, costs, calls * n, self.prices)
        if cost is None:
            raise _LeftOut("unknown_cost", f"what it costs in {self.unit} is not known")
        figures = ArmFigures(
            arm=code,
            models=models,
            draws=draws,
            accuracy=profile.accuracy,
            calls_per_question=calls,
            cost_per_1000=1000 * cost / n,
        )
        return figures, profile

    def _draws(self, model: str, budget: float, cost: Callable[[Profile], float]) -> list[Profile]:
        return draws_worth(self._profiler, model, self._task, self._config.seed, budget, cost)

    def _of_best(self, cost: Callable[[Profile], float], parts: str = "") -> list[Profile]:
        """Responses of the best single model, which cost what the fusion costs."""
        drawn: list[Profile] = []
        if self._cost(self._chosen.alone[self._best].cost) < self._budget:
            drawn = self._draws(self._best, self._budget, cost)
        if len(drawn) < 2:
            raise _LeftOut("costs_more", f"two responses of {self._best}{parts} cost more than the fusion")
        return drawn

    def _cost(self, cost: Cost, name: str = "") -> float:
        """What one response of a model to each question costs; of the best single model without a name."""
        own = cost_in(self.unit, {name or self._best: cost}, len(self._task.examples), self.prices)
        if own is None:
            raise _LeftOut("unknown_cost", f"what responses of {name or self._best} cost is not known")
        return own

    def _check_counts(self) -> None:
        if not can_vote(self._task):
            raise _LeftOut("no_vote", "the responses have no extracted answers that a vote can count")


def _section(config: RunConfig, asking: _Asking, arms: Sequence[_Arm], left_out: tuple[LeftOutArm, ...]) -> ArmsSection:
    codes = [figures.arm for figures, _ in arms]
    clusters = None if config.held_out is None else clusters_of(config.held_out)
    paired = PairedScores(np.stack([scores(profile) for _, profile in arms], axis=1), clusters, config.seed)
    leads = leads_of(paired, codes, 1, config.alpha)
    margin = MARGIN if config.rules.min_gain is None else config.rules.min_gain
    pays, decisive, needed = decide(paired, 1, leads, config.alpha, margin)
    compared = []
    for number, (figures, _) in enumerate(arms):
        gain = paired.difference(codes, (0, number), config.alpha, is_tested=False)
        found: dict[str, Any] = {
            "accuracy_ci": paired.accuracy_interval(number),
            "gain": gain.estimate,
            # Over itself, a model gains nothing, and that is certain.
            "gain_ci": gain.interval if number else (0.0, 0.0),
        }
        if number in leads:
            lead, p_adjusted = leads[number]
            found |= {"lead": lead.estimate, "lead_ci": lead.interval}
            found |= {"p_two_sided": lead.p_two_sided, "p_adjusted": p_adjusted}
        compared.append(figures.model_copy(update=found))
    section = ArmsSection(
        pays=pays,
        decided_by=codes[decisive],
        questions_needed=needed,
        n=len(arms[0][1].answers),
        unit=asking.unit,
        margin=margin,
        confidence=config.confidence,
        arms=tuple(compared),
        left_out=left_out,
    )
    return section.model_copy(update={"text": _text(section, compared[decisive], *leads[decisive])})


def _text(section: ArmsSection, rival: ArmFigures, lead: Difference, p_adjusted: float) -> str:
    n, (low, high) = counted(section.n, "held-out question"), lead.interval
    ends = f"{interval_name(section.confidence)} {signed(low)} to {signed(high)}"
    unit = "number of calls" if section.unit == "calls" else section.unit
    over = f"over {rival.title}, at {share(section.share_of(rival))} of its {unit}"
    if section.pays == "yes":
        others = counted(len(section.arms) - 1, "other arm")
        return (
            f"The fusion pays: on {n} it is better than each of {others}. It leads least {over}: "
            f"{signed(lead.estimate)} points ({ends}; p {p_value(p_adjusted)} after correction for all arms)."
        )
    if section.pays == "no":
        gained = f"gains at most {high:.1f} points" if high >= 0 else f"loses at least {-high:.1f} points"
        least = f"the least gain that pays is {section.margin:g} (--min-gain)"
        return f"The fusion does not pay: {over}, it {gained} ({ends}, {n}), and {least}."
    needed = section.questions_needed
    more = "" if needed is None else f" About {needed:,} questions would tell, if the differences are as observed."
    return (
        f"Cannot tell with {n} whether the fusion pays: {over}, its difference is {signed(lead.estimate)} points "
        f"({ends}).{more}"
    )
