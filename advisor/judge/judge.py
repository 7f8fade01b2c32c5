"""The judge of a run: it grades responses one by one, or compares those of different models in both orders.

*Single*: a response's score is its grade on the scale, from 0 to 1 (Zheng et al., "Judging LLM-as-a-Judge with MT-Bench
and Chatbot Arena", 2023, section 3.1, single answer grading).

*Pairwise*: a response is compared with those of all candidates, and each pair in both orders, because judges prefer a
place (section 3.4). Its score is the mean of these comparisons: 1 for a win, 0.5 for a tie, 0 for a loss. A candidate's
own response counts as one tie, so that every response, that of an ensemble too, has the same opponents. So scores of
two models on a question differ only by their responses, and paired tests hold.

Not every comparison needs the judge: equal texts are a tie, and a response that failed loses against any other.

A second judge gets the same prompts. It changes no score; its verdicts are there to be compared with the first one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from advisor.judge.prompts import Shown, Verdict, judge_task, name_of_set, verdict_of
from advisor.models.fingerprint import Fingerprint
from advisor.models.loaded_models import JobRunner, LocalJobRunner
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import RunConfig
from advisor.models.server_model import ServerIdentity
from advisor.progress import Progress
from advisor.records import Answer, Profile
from advisor.tasks.task import Task, sha256
from ensemble.common.text import counted, visible
from ensemble.errors import InputError, JudgeError, MemberError
from ensemble.models.model_files import control_tokens

TIE = 0.5
"""The score of a tie, and of a comparison without a verdict that can be read."""

_DIGITS = 12  # of the judge's version in a signature, as of the prompt's hash there
_OWN = (
    "the judge {} is a candidate, too; judges prefer their own responses (Zheng et al., 2023, section 3.3), so let a "
    "model that is no candidate decide"
)

Key = tuple[str, str, str]
"""A question's id and the names of the models whose responses a judge saw, in this order; the last is empty for one."""


@dataclass(slots=True)
class _Split:
    """The verdicts on one split: of each judge, and what was settled without one."""

    judged: tuple[dict[Key, float | None], ...]
    settled: dict[Key, float] = field(default_factory=dict)
    prompts: set[str] = field(default_factory=set)


class Judge:
    """Grades the responses of a run with one or two models."""

    def __init__(
        self, config: RunConfig, cache: ResponseCache, progress: Progress, engine: JobRunner | None = None
    ) -> None:
        rubric = config.dev.rubric
        if rubric is None:
            raise InputError(f"{config.dev.name} has no judge")
        self._rubric = rubric
        self._candidates = {entry.name: entry.checkpoint for entry in config.candidates}
        self._progress = progress
        judges = replace(
            config,
            candidates=config.judges,
            options=replace(config.options, weights=None),
            # The limit of tokens is for the candidates' responses; the task file has that of a judge's text.
            dev=replace(config.dev, max_new_tokens=rubric.max_new_tokens),
        )
        self._profiler = Profiler(judges, cache, progress, engine=engine)
        self.mode = self._rubric.mode
        self._judges = config.judges
        self.names = tuple(entry.name for entry in config.judges)
        self.identities: Mapping[str, Fingerprint | ServerIdentity] = self._profiler.identities
        self._splits: dict[str, _Split] = defaultdict(lambda: _Split(tuple({} for _ in self.names)))
        # By their files or addresses: a judge's line may give a candidate another name.
        own = [judge.name for judge in config.judges if judge.checkpoint in self._candidates.values()]
        # That a judge reads responses which it wrote itself.
        self.note = _OWN.format(", ".join(own)) if own else None
        if self.note is not None:
            progress.say(self.note)

    def sign(self, task: Task) -> Task:
        """The task with a signature that has the judge's name and version: scores of two judges are not comparable."""
        name = self.names[0]
        # A name alone would stand for any checkpoint that is called so.
        version = sha256(self.identities[name].key())[:_DIGITS]
        return replace(task, versions=(*task.versions, ("judge", f"{name}@{version}")))

    def verdicts(self, split: str) -> tuple[Sequence[Verdict], ...]:
        """What each judge said about the responses to a split, without those that no judge saw; see :meth:`settled`."""
        return tuple([Verdict(*key, score) for key, score in judged.items()] for judged in self._splits[split].judged)

    def settled(self, split: str) -> Sequence[Verdict]:
        """What was decided without a judge: ties of equal texts, and the losses and lowest grades of failed ones."""
        return [Verdict(*key, score) for key, score in self._splits[split].settled.items()]

    def calls(self, split: str) -> int:
        """The number of different prompts that the judge got for a split, with those of its second try."""
        return len(self._splits[split].prompts)

    def grade(self, profiles: Mapping[str, Profile], task: Task) -> dict[str, Profile]:
        """Grade responses one by one.

        A response whose grade cannot be read takes the mean of the grades of the same question, so that the failure
        neither helps nor harms its model; without another grade it takes the middle of the scale.
        """
        split, shown = self._splits[task.split], dict[Key, Shown]()
        for name, profile in profiles.items():
            for seen, answer in zip(_seen(task, profile), profile.answers, strict=True):
                if answer.error is None:
                    shown[answer.id, name, ""] = seen
                else:
                    # There is nothing to grade, and a model must not gain by failing.
                    split.settled[answer.id, name, ""] = 0.0
        grades = self._ask(task, shown)
        by_question = defaultdict[str, list[float]](list)
        for (question, name, _), grade in split.judged[0].items():
            # Of the candidates alone, so that a later set changes no earlier score.
            if grade is not None and name in self._candidates:
                by_question[question].append(grade)

        def graded(answer: Answer, name: str) -> Answer:
            if answer.error is not None:
                return answer
            grade, others = grades[answer.id, name, ""], by_question[answer.id]
            middle = sum(others) / len(others) if others else TIE
            return _scored(answer, middle if grade is None else grade)

        return {
            name: replace(profile, answers=tuple(graded(answer, name) for answer in profile.answers))
            for name, profile in profiles.items()
        }

    def compare(
        self, profiles: Mapping[str, Profile], opponents: Mapping[str, Profile], task: Task
    ) -> dict[str, Profile]:
        """Compare responses with those of all candidates, in both orders; a verdict that cannot be read is a tie."""
        settled, shown = self._splits[task.split].settled, dict[Key, Shown]()
        for name, profile in profiles.items():
            for rival, other in opponents.items():
                if name == rival:
                    continue
                # A pair comes up again in the rival's turn; its prompts are then the same, and are sent once.
                for names, (one, two) in (((name, rival), (profile, other)), ((rival, name), (other, profile))):
                    for seen, first, second in zip(_seen(task, one, two), one.answers, two.answers, strict=True):
                        key, known = (first.id, *names), _settle(first, second, seen)
                        if known is None:
                            shown[key] = seen
                        else:
                            settled[key] = known
        verdicts = self._ask(task, shown)

        def score(question: str, first: str, second: str) -> float:
            key = (question, first, second)
            verdict = verdicts[key] if key in verdicts else settled[key]
            return TIE if verdict is None else verdict

        def share(question: str, name: str) -> float:
            """The share of its comparisons that a response wins; its own one is a tie."""
            return sum(
                TIE if name == rival else (score(question, name, rival) + 1 - score(question, rival, name)) / 2
                for rival in opponents
            ) / len(opponents)

        compared = {}
        for name, profile in profiles.items():
            shares = [share(answer.id, name) for answer in profile.answers]
            answers = tuple(_scored(*pair) for pair in zip(profile.answers, shares, strict=True))
            compared[name] = replace(profile, answers=answers)
        return compared

    def _ask(self, task: Task, shown: Mapping[Key, Shown]) -> dict[Key, float | None]:
        """The first judge's verdicts; those of all judges are kept."""
        if not shown:
            return {}
        split = self._splits[task.split]
        # Models often write the same: each prompt is sent once.
        prompts = list(dict.fromkeys(shown.values()))
        for name, judged in zip(self.names, split.judged, strict=True):
            answers = self._answers(name, task, prompts)
            unread = [
                each
                for each in prompts
                if self._rubric.verdict == "text"
                and answers[each].error is None
                and verdict_of(self._rubric, answers[each]) is None
            ]
            # Once more: most judges that reason at length can still write the verdict alone.
            answers |= self._answers(name, task, unread, again=True) if unread else {}
            values = {each: verdict_of(self._rubric, answer) for each, answer in answers.items()}
            # Kept for the figures of the judge; a later call for the same split adds to them.
            judged.update({key: values[each] for key, each in shown.items()})
            if unread := [each for each in prompts if values[each] is None]:
                self._say_unread(name, task.split, answers[unread[0]], [*judged.values()])
        return {key: split.judged[0][key] for key in shown}

    def _answers(self, name: str, task: Task, shown: Sequence[Shown], *, again: bool = False) -> dict[Shown, Answer]:
        asked = judge_task(task, self._rubric, shown, self._control, again=again)
        if name == self.names[0]:
            self._splits[task.split].prompts.update(example.prompt for example in asked.examples)
        try:
            profile = self._profiler.reading(name, asked, f"judge {name}")
        except MemberError as error:
            raise JudgeError(
                f"the judge {name} failed: {error.without(name)}; correct it and run the same "
                "command again: it continues from the stored responses and verdicts"
            ) from error
        return dict(zip(shown, profile.answers, strict=True))

    @cached_property
    def _control(self) -> tuple[str, ...]:
        """What the tokenizers of the judges read as control; nothing for one that is not known here."""
        known = [judge for judge in self._judges if judge.can_decode]
        return tuple(dict.fromkeys(token for judge in known for token in control_tokens(judge.tokenizer)))

    def _say_unread(self, name: str, split: str, first: Answer, values: Sequence[float | None]) -> None:
        # Counted like the figures of the judge: a prompt that several comparisons share counts for each of them.
        counts = "a tie" if self.mode == "pairwise" else "the mean of the other grades of its question"
        self._progress.say(
            f"judge {name}: {sum(value is None for value in values):,} of its {counted(len(values), 'verdict')} on "
            f"{split} cannot be read; each counts as {counts}; the first: "
            f"{first.error or visible(first.text or '')[:100]!r}"
        )


def _scored(answer: Answer, score: float) -> Answer:
    # As with BLEU, the whole response is what is scored. Two responses of the same grade are not the same answer.
    return replace(answer, score=score, extracted=(answer.text or "").strip() or None)


def _seen(task: Task, *profiles: Profile) -> list[Shown]:
    """What a judge sees of the responses to each question, with the turns before it."""
    seen: list[Shown] = []
    # Only to find the turn before: with equal ids it would hold fewer than there are answers.
    by_id: dict[str | None, Shown] = {}
    for example, *answers in zip(task.examples, *(profile.answers for profile in profiles), strict=True):
        seen.append(Shown(example, tuple(answer.text or "" for answer in answers), by_id.get(example.earlier)))
        by_id[example.id] = seen[-1]
    return seen


def _settle(first: Answer, second: Answer, seen: Shown) -> float | None:
    """What the first response scores if this needs no judge; else None."""
    if first.error is not None or second.error is not None:
        return (1 + (second.error is not None) - (first.error is not None)) / 2
    return TIE if seen.is_same else None


class JudgedProfiler(Profiler):
    """Profiles candidates and sets, and lets a judge score their responses.

    Texts that other models read, of :meth:`drawn` and :meth:`reading`, are not scored, because most of them are no
    answers yet. :meth:`graded` scores those that are.
    """

    def __init__(
        self,
        config: RunConfig,
        cache: ResponseCache,
        progress: Progress,
        judge: Judge,
        *,
        engine: JobRunner | None = None,
    ) -> None:
        super().__init__(config, cache, progress, engine=engine)
        self._judge = judge
        self._names = [candidate.name for candidate in config.candidates]
        self._opponents: dict[tuple[str, ...], dict[str, Profile]] = {}

    def alone(self, names: Sequence[str], task: Task) -> dict[str, Profile]:
        """See :meth:`Profiler.alone`. A judge that compares needs the responses of all candidates."""
        if not task.is_relative:
            return self._judge.grade(super().alone(names, task), task)
        # Also of candidates that were not named: a score is a share of wins over all of them.
        opponents = self._all_alone(task)
        return self._judge.compare({name: opponents[name] for name in names if name in opponents}, opponents, task)

    def together(
        self, names: Sequence[str], task: Task, method: str | None = None, options: Mapping[str, Any] | None = None
    ) -> Profile:
        """See :meth:`Profiler.together`."""
        profile = super().together(names, task, method, options)
        return self._scored(name_of_set(profile.model, names), profile, task)

    def graded(self, profile: Profile, names: Sequence[str], task: Task) -> Profile:
        """See :meth:`Profiler.graded`."""
        # A candidate may be called like a method, and its verdicts are not those of the method.
        return self._scored(name_of_set(profile.model, names), profile, task)

    def _scored(self, name: str, profile: Profile, task: Task) -> Profile:
        if not task.is_relative:
            return self._judge.grade({name: profile}, task)[name]
        return self._judge.compare({name: profile}, self._all_alone(task), task)[name]

    def _all_alone(self, task: Task) -> dict[str, Profile]:
        """The responses of all candidates that have not failed."""
        # By the questions, because --until-sure judges longer and longer parts of a split.
        key = (task.split, *(example.id for example in task.examples))
        known = self._opponents.get(key, {})
        names = [name for name in self._names if name not in self.failures]
        # A candidate that fails on one split is no opponent on any.
        if any(name not in known for name in names):
            known = self._opponents[key] = super().alone(names, task)
        return {name: profile for name, profile in known.items() if name not in self.failures}


def open_profiler(
    config: RunConfig,
    cache: ResponseCache,
    progress: Progress,
    *,
    engine: JobRunner | None = None,
) -> tuple[Profiler, Judge | None]:
    """The profiler of a run, and the judge if it has one: of a task with a rubric the judge gives the scores."""
    # Judges and candidates share it, and so the memory.
    engine = engine or LocalJobRunner(config.cache_dir)
    if not config.judges:
        return Profiler(config, cache, progress, engine=engine), None
    judge = Judge(config, cache, progress, engine)
    return JudgedProfiler(config, cache, progress, judge, engine=engine), judge
