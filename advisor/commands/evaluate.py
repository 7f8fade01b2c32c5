"""``advisor evaluate``: methods of ensembling side by side, on the members of a finished run.

Token-level and span-level methods decode; response-level ones read the members’ stored responses. Each method, every
member alone and a control have the same questions and the same scoring. The control is the majority over as many
sampled responses of the best member as there are members: the result of the same cost without an ensemble. If the
members think apart, it has as many responses as take the tokens that the set took, all thinking included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import yaml

from advisor.advice.compared_models import compare
from advisor.commands.command_line import command_line, print_json
from advisor.jobs.figures import corpus_figures, judge_section, provenance_of_run
from advisor.jobs.played import ONLY_OPTIONS, are_drawn, draws_worth, play_with_models
from advisor.jobs.session import open_session, with_devices
from advisor.judge.judge import open_profiler
from advisor.judge.prompts import name_of_set
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import ACCURACY, LIKELIHOOD, RunConfig, load_split
from advisor.options.finished_run import EvaluateOptions
from advisor.options.shared import split_names
from advisor.progress import Progress
from advisor.records import Cost, Profile
from advisor.run.evaluation import EvaluatedMethod, EvaluatedModel, Evaluation
from advisor.run.figures import SCHEMA_VERSION, JudgeSection
from advisor.run.folder import Run, locked, write_json
from advisor.run.plan import candidates_of_run, check_servers, entries_as, judges_beside, limits_of_run, with_task_of
from advisor.run.result import Provenance
from advisor.statistics import accuracy_interval, holm
from advisor.strategies.fusion import Fusion, check_prompt
from advisor.strategies.replay import replay_all
from advisor.strategies.self_consistency import TEMPERATURE, SelfConsistency
from advisor.strategies.strategy import AnsweredSplit, Call, QuestionText, WritingFlow
from advisor.strategies.vote import Vote, can_vote
from advisor.tasks.task import Task
from ensemble.common.files import default_cache_dir
from ensemble.common.schema import written
from ensemble.common.text import counted
from ensemble.errors import InputError, JudgeError, MemberError, UniteError, first_line
from ensemble.methods import Level, get_method, get_module, list_methods, make_options, plugins
from ensemble.methods._response import Aggregation, Majority, ResponseMethod
from reports import write_report
from reports.terminal import print_methods


def evaluate(options: EvaluateOptions) -> None:
    """Score methods, and every member alone; write ``evaluation.json`` and the report, and print the methods."""
    run, progress = Run.open(options.run), Progress(quiet=options.quiet)
    config = with_devices(evaluation_config(run, options, command_line()), progress)
    methods = _methods(options)
    method_options = learned_options(run, methods, config)
    for method, values in _read_settings(options.settings, methods).items():
        method_options.setdefault(method, {}).update(values)
    # Checked before the cache is opened, so that a wrong option writes nothing.
    for method, values in method_options.items():
        make_options(method, values)
    with open_session(config, progress, {options.split: len(methods)}) as (cache, _), locked(options.run):
        evaluator = Evaluator(config, methods, method_options, cache, progress)
        profiles, results = evaluator.run()
        for profile in profiles:
            if unread := [answer for answer in profile.answers if answer.problem is not None]:
                number, first = counted(len(unread), "response"), unread[0]
                progress.say(f"{profile.model}: no answer in {number}; {first.id}, for example: {first.problem}")
    judge = evaluator.judge
    task, judged = evaluator.task, None
    recorded = provenance_of_run(config, evaluator.profiler, methods, judge)
    if judge:
        task, names = judge.sign(task), [profile.model for profile in profiles]
        sets = {name_of_set(name, names): answers for name, answers in evaluator.answers.items()}
        responses = {**dict(zip(names, profiles, strict=True)), **sets}
        judged = judge_section(judge, [(task, responses)], names, seed=config.options.seed)
    evaluation = evaluation_of(profiles, results, config, task, recorded, judged)
    content = written(evaluation)
    # Before the report, which reads it.
    write_json(options.run / "evaluation.json", content)
    write_report(options.run)
    if options.as_json:
        print_json(content)
    else:
        print_methods(evaluation)


def evaluation_config(run: Run, options: EvaluateOptions, command: str) -> RunConfig:
    """Load what the options name: ``held_out`` has the questions to evaluate on, ``dev`` those that give weights."""
    seed = options.seed or 0
    if options.task is None:
        options, seed = _as_in_run(run, options)
    methods, members = _methods(options), split_names(options.members)
    if not methods:
        raise InputError(f"--methods: name at least one of {', '.join(list_methods())}")
    for method in methods:
        plugins().check(method)
        if method not in list_methods():
            raise InputError(f"--methods {method}: not one of {', '.join(list_methods())}; or give all")
    for option, names in (("--methods", methods), ("--members", members)):
        if repeated := next((name for name, count in Counter(names).items() if count > 1), None):
            raise InputError(f"{option}: {repeated} appears twice; name each once")
    candidates = entries_as(candidates_of_run(run, members, options.pool, options.trust_remote_code), options)
    if len(candidates) < 2:
        raise InputError(
            f"{run.folder}: the set has one model, {candidates[0].name}, and methods join at least two; name some of "
            "its candidates with --members"
        )
    check_servers(candidates, options, None if options.pool is not None else run.file)
    evaluated = load_split(options, options.split, seed, candidates, max_new_tokens=options.max_new_tokens)
    evaluated.check_allowed()
    judges = judges_beside(run, options, evaluated)
    dev = evaluated
    # Without such weights a missing dev split must not end the command.
    if options.weights in (ACCURACY, LIKELIHOOD):
        dev = load_split(options, "dev", seed, candidates, max_new_tokens=options.max_new_tokens)
        _check_disjoint(evaluated, dev, options.weights)
    return RunConfig(
        options=options.of_select(k=options.k, weights=options.weights, think=options.think, seed=seed),
        candidates=candidates,
        dev=dev,
        held_out=evaluated,
        cache_dir=options.cache_dir or default_cache_dir(),
        command=command,
        judges=judges,
    )


def _as_in_run(run: Run, options: EvaluateOptions) -> tuple[EvaluateOptions, int]:
    """The options with the run's task and its settings where they name none, and the seed.

    So the questions, the prompts and the models' answers are those of the run.
    """
    task, limit = run.result.task, (run.result.provenance.settings or {}).get("limit")
    if options.split not in ("dev", "held_out") or not isinstance(limit, int):
        limit = None
    as_in_run = replace(
        options,
        limit=options.limit or limit,
        shots=task.shots if options.shots is None else options.shots,
        max_new_tokens=options.max_new_tokens or limits_of_run(run)[0],
    )
    return with_task_of(run, as_in_run), (task.seed or 0) if options.seed is None else options.seed


def _methods(options: EvaluateOptions) -> tuple[str, ...]:
    return tuple(list_methods()) if options.methods == "all" else split_names(options.methods)


def _check_disjoint(task: Task, dev: Task, weights: str) -> None:
    """Check that two splits share no question: models are not judged on the questions that they are weighed by."""
    # By prompt and not by id: two splits from one file often number their questions anew. Later turns of different
    # conversations may have the same words.
    prompts = {example.prompt for example in dev.examples if example.earlier is None}
    if shared := sum(example.prompt in prompts for example in task.examples if example.earlier is None):
        raise InputError(
            f"--split {task.split}: {shared} of its {len(task.examples)} questions are among the dev ones that "
            f"--weights {weights} are from; give another split, or give numbers"
        )


def learned_options(run: Run, methods: Sequence[str], config: RunConfig) -> dict[str, dict[str, Any]]:
    """Options of methods that the run has found out: DeePEn-Adapt weighs members by their accuracy on dev."""
    if "deepen-adapt" not in methods:
        return {}
    by_name = {candidate.model: candidate.accuracy for candidate in run.result.candidates}
    accuracies = [by_name.get(member.name) for member in config.candidates]
    if not any(accuracy is not None for accuracy in accuracies):
        raise InputError(f"{run.place}: candidates has no accuracies; run `advisor select` again")
    # A candidate that failed in the run has no accuracy; the method then says that it lacks them.
    return {} if None in accuracies else {"deepen-adapt": {"accuracies": accuracies}}


def _read_settings(settings: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of methods, ``METHOD.NAME=VALUE`` each, by method and name."""
    options: dict[str, dict[str, Any]] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        method, _, name = key.partition(".")
        if not equals or method not in methods or not name:
            raise InputError(f"--set {setting}: give METHOD.NAME=VALUE, for a method of --methods")
        try:
            options.setdefault(method, {})[name] = yaml.safe_load(value)
        # ValueError: a date that does not exist, for example.
        except (yaml.YAMLError, ValueError, RecursionError):
            raise InputError(f"--set {setting[:100]}: the value cannot be read as YAML; correct it") from None
    return options


def evaluation_of(
    members: Sequence[Profile],
    methods: Sequence[EvaluatedMethod],
    config: RunConfig,
    task: Task,
    provenance: Provenance,
    judge: JudgeSection | None = None,
) -> Evaluation:
    """The contents of ``evaluation.json``."""
    return Evaluation(
        schema_version=SCHEMA_VERSION,
        task=task.name,
        metric=task.metric,
        split=task.split,
        n=len(task.examples),
        signature=task.signature,
        k=config.options.k,
        weights=config.options.weights,
        think=config.options.think,
        best_single_model=_best(members).model,
        members=tuple(
            EvaluatedModel(
                model=member.model,
                accuracy=member.accuracy,
                accuracy_ci=accuracy_interval(member),
                **corpus_figures(member, task),
                mean_length=member.mean_length,
                ms_per_token=_speed(member.cost)[0] or None,
                seconds_per_question=member.cost.seconds / len(member.answers),
                peak_memory=member.cost.peak_memory,
            )
            for member in members
        ),
        methods=tuple(methods),
        judge=judge,
        provenance=provenance,
    )


CONTROL = "self-consistency"
"""The control's name: the majority of several responses of one model (Wang et al., 2023)."""
_NO_GATE = "its gate plays no part, because options are scored by all members at every token"
_KEPT = "are earlier responses, because a model could not answer with the responses in its prompt"
_NO_VOTE = "votes are counted only for short, fixed answers, which this task's metric does not read"


class Evaluator:
    """Runs methods on a set: the candidates of a run, the primary first, on its held-out questions.

    ``answers`` has those of each method that was run, and of the control, by name.
    """

    def __init__(
        self,
        config: RunConfig,
        methods: Sequence[str],
        options: Mapping[str, Mapping[str, Any]],
        cache: ResponseCache,
        progress: Progress,
    ) -> None:
        if config.held_out is None:
            raise InputError("no questions to evaluate on; name a split with --split")
        self.task = config.held_out
        self._config, self._methods, self._settings = config, methods, options
        self._names = [candidate.name for candidate in config.candidates]
        self._progress = progress
        self.profiler, self.judge = open_profiler(config, cache, progress)
        self.answers: dict[str, Profile] = {}
        # The response-level methods that fit, with the models that they ask, until they have answered.
        self._responders: dict[str, ResponseMethod | Aggregation | Majority] = {}

    def run(self) -> tuple[list[Profile], list[EvaluatedMethod]]:
        """Evaluate the methods, then the control; first of all comes every member alone, in the set's order.

        It is an error if no method fits the set, before any model has been run, or if a member fails.
        """
        left_out = self._check()
        if len(left_out) == len(self._methods):
            raise InputError("; ".join(map(str, left_out.values())))
        profiles = self.profiler.alone(self._names, self.task)
        # Without one member there is no set to compare, so this is an error and not a note.
        for name, reason in self.profiler.failures.items():
            raise MemberError(reason, of=name)
        alone, results = [profiles[name] for name in self._names], list[EvaluatedMethod]()
        for name in self._methods:
            level = get_method(name).level
            if name in left_out:
                results.append(_left_out(name, level, left_out[name]))
            elif level == "response":
                results.append(self._respond(name, alone))
            else:
                results.append(self._decode(name, level, alone))
        # Holm's correction is for all methods; the control is no method, and has no corrected p-value.
        p_values = {n: each.p_two_sided for n, each in enumerate(results) if each.p_two_sided is not None}
        adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
        corrected = [each.model_copy(update={"p_adjusted": adjusted.get(n)}) for n, each in enumerate(results)]
        return alone, [*corrected, self._control(alone, results)]

    def _check(self) -> dict[str, InputError]:
        """The reasons of the methods that cannot be run on this set, by name."""
        reasons = dict[str, InputError]()
        for name in self._methods:
            options = self._settings.get(name, {})
            try:
                if get_method(name).level == "response":
                    self._responders[name] = made = self._responder(name)
                    if isinstance(made, Majority) and not can_vote(self.task):
                        raise InputError(_NO_VOTE, of=f"method {name}")
                    continue
                # Only loading shows whether a method fits. Stored responses show it too, and take no time.
                if not self.profiler.is_stored(self._names, self.task, name, options):
                    self.profiler.load(self._names, name, options)
            except InputError as error:
                reasons[name] = error
        return reasons

    def _decode(self, name: str, level: Level, alone: Sequence[Profile]) -> EvaluatedMethod:
        try:
            together = self.profiler.together(self._names, self.task, name, self._settings.get(name, {}))
        except MemberError as error:
            self._progress.say(str(error))
            return _left_out(name, level, error)
        result = self._result(name, level, together, alone, _speed(together.cost), together.cost)
        has_no_part = get_method(name).gated and self.task.metric == "choice"
        return result.model_copy(update={"note": _NO_GATE}) if has_no_part else result

    def _respond(self, name: str, alone: Sequence[Profile]) -> EvaluatedMethod:
        """Let a method answer by calls of the members."""
        responses = dict(zip(self._names, alone, strict=True))
        try:
            members, flow = self._flow(name, alone)
            made = play_with_models(self.profiler, members, flow, self.task, responses, self._config.options.seed, name)
            profile = self.profiler.graded(made.replay.profile, self._names, self.task)
        except JudgeError:
            raise  # all other methods would fail as well
        except UniteError as error:
            self._progress.say(str(error))
            return _left_out(name, "response", error)
        ran, n = [reply for _, reply, _ in made.replay.calls], len(self.task.examples)
        # Everything that was asked counts, since the answer was made from it; of some questions, their share.
        speed = sum(_speed(each.cost)[0] * len(each.answers) / n for each in ran), profile.cost.seconds
        result = self._result(name, "response", profile, alone, speed, None)
        # The members need not be in memory together.
        taken = [each.cost.peak_memory for each in ran if each.cost.peak_memory is not None]
        result = result.model_copy(update={"peak_memory": max(taken, default=None)})
        if not made.unread:
            return result
        note = f"{len(made.unread)} of {made.readings} answers {_KEPT}; the first: {made.unread[0]}"
        return result.model_copy(update={"note": note})

    def _flow(self, name: str, alone: Sequence[Profile]) -> tuple[Sequence[str], Callable[[QuestionText], WritingFlow]]:
        """The flow of a method, and the models that its calls number."""
        method = self._responders.pop(name)
        if isinstance(method, Majority):
            return self._names, Vote(tuple(self._names)).flow
        if not isinstance(method, Aggregation):
            return self._names, partial(choosing, name, method, len(self._names))
        writer = method.aggregator or (_best(alone).model if method.own_draws else self._names[0])
        panel, draws = (self._names, 1) if not method.own_draws else ([writer], len(self._names))
        fusion = Fusion.of(panel, writer, draws, method.layers, method.template)
        return fusion.members, fusion.flow

    def _responder(self, name: str) -> ResponseMethod | Aggregation | Majority:
        try:
            options = make_options(name, self._settings.get(name, {}))
            made: ResponseMethod | Aggregation | Majority = get_module(name).make(options)
            if isinstance(made, Aggregation):
                # A member of the set reads the responses, and writes an answer.
                if self.task.metric == "choice":
                    raise InputError(ONLY_OPTIONS, of=f"method {name}")
                if made.aggregator is not None and made.aggregator not in self._names:
                    own = f"is not a member of the set; name one of {', '.join(self._names)}"
                    raise InputError(f"{made.aggregator!r} {own}", of=f"method {name}")
                check_prompt(made.template, made.file, ("prompt", "question"))
        except UniteError:
            raise
        except Exception as error:  # of transformers, or of code that came with a model
            raise InputError(
                f"{type(error).__name__}: {first_line(error)}", of=f"method {plugins().label(name)}"
            ) from error
        return made

    def _control(self, alone: Sequence[Profile], results: Sequence[EvaluatedMethod]) -> EvaluatedMethod:
        if not are_drawn(self.task):
            reason = "options are chosen by their likelihood, so there are no samples"
            left_out = reason if self.task.metric == "choice" else _NO_VOTE
            return EvaluatedMethod(method=CONTROL, level="control", left_out=left_out)
        # The thinking is the same for all methods, and the answers are nearly as long.
        spent = [self.answers[each.method].cost for each in results if each.level == "token" and not each.left_out]
        most = max((cost.tokens_of_set(len(self._names)) for cost in spent), default=None)
        tokens = most if self._config.options.think else None
        best, seed = _best(alone).model, self._config.options.seed
        if tokens is None:
            seeds = range(seed, seed + len(self._names))
            samples = [self.profiler.drawn(best, self.task, TEMPERATURE, each) for each in seeds]
        else:
            samples = draws_worth(self.profiler, best, self.task, seed, tokens)
        majority = SelfConsistency((best,), len(samples))
        voted = replay_all(majority, AnsweredSplit(self.task, {}, draws={best: samples}))
        ms_per_token, seconds = zip(*(_speed(sample.cost) for sample in samples), strict=True)
        # All samples are needed for one answer, so their times add up.
        speed = sum(ms_per_token), sum(seconds)
        drawn, n = sum(sample.cost.tokens for sample in samples), len(self.task.examples)
        profile = replace(voted.profile, model=CONTROL, cost=Cost(speed[1], drawn))
        result = self._result(CONTROL, "control", profile, alone, speed, samples[0].cost)
        if tokens is None:
            return result
        note = f"{len(samples)} responses a question with {drawn / n:.1f} tokens, and a set took {tokens / n:.1f}"
        return result.model_copy(update={"note": note})

    def _result(
        self,
        name: str,
        level: Level | Literal["control"],
        profile: Profile,
        alone: Sequence[Profile],
        speed: tuple[float, float],
        cost: Cost | None,
    ) -> EvaluatedMethod:
        self.answers[name] = profile
        decoded = cost is not None and cost.steps > 0 and level != "control"
        is_joint, n = level not in ("response", "control"), len(self.task.examples)
        tokens = profile.cost.tokens_of_set(len(self._names)) if is_joint else profile.cost.tokens
        difference = compare(profile, alone, self._config.options.seed)
        return EvaluatedMethod(
            method=name,
            level=level,
            accuracy=profile.accuracy,
            accuracy_ci=accuracy_interval(profile),
            **corpus_figures(profile, self.task),
            difference=difference.difference,
            difference_ci=difference.difference_ci,
            p_two_sided=difference.p_two_sided,
            gained=difference.gained,
            lost=difference.lost,
            tokens_per_question=tokens / n,
            ms_per_token=speed[0] or None,
            seconds_per_question=speed[1] / n,
            share_ensembled=cost.ensembled_steps / cost.steps if cost and decoded else None,
            handled_per_step=cost.vocabulary_entries / cost.steps or None if cost and decoded else None,
            peak_memory=cost.peak_memory if cost else None,
        )


def _left_out(name: str, level: Level, error: UniteError) -> EvaluatedMethod:
    return EvaluatedMethod(method=name, level=level, left_out=error.without(f"method {name}"))


def _best(alone: Sequence[Profile]) -> Profile:
    """The best single model; the first of equal ones."""
    return max(alone, key=lambda profile: round(profile.accuracy, 9))


def _speed(cost: Cost) -> tuple[float, float]:
    """Milliseconds of a token (0 without any token), and seconds of all responses."""
    return (1000 * cost.seconds / cost.tokens if cost.tokens else 0.0), cost.seconds


def choosing(name: str, method: ResponseMethod, members: int, question: QuestionText) -> WritingFlow:
    """Ask all members, and let a method choose one of the responses or write another one."""
    replies = yield [Call((member,)) for member in range(members)]
    texts, answers = [reply.text or "" for reply in replies], [reply.answer for reply in replies]
    try:
        with plugins().running(name):
            taken = method.choose(question.prompt, texts, answers)
    except UniteError:
        raise
    except Exception as error:  # tokenizers and networks of strangers raise errors of many kinds
        reason = f"it failed while it was run ({type(error).__name__}: {first_line(error)})"
        raise MemberError(f"{reason}; if it asks a model, name another one", of=f"method {name}") from error
    # -1 would be the last response, and True the second.
    if isinstance(taken, str) or (type(taken) is int and 0 <= taken < len(texts)):
        return taken
    raise InputError(
        f"{question.place}: it chose {taken!r}; it must give the number of a response, from 0 to {len(texts) - 1}, or "
        "a text",
        of=f"method {plugins().label(name)}",
    )
