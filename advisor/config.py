"""The configuration of a run, made once from a command's options. Each type checks the ranges of its values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from advisor.logs.join import JoinedLogs, join_logs
from advisor.logs.record import LogOptions
from advisor.logs.scoring import Scoring
from advisor.pool.pool_file import entries_named, read_line, read_pool
from advisor.pool.quantization import with_quantization
from advisor.pool.weights import EQUAL, check_weights
from advisor.records import ALPHA, CONFIDENCE, MOST_QUESTIONS, TRIES, Limits, alpha_of
from advisor.tables.streams import Notes
from advisor.tasks import Task, load_task
from ensemble.common.files import default_cache_dir
from ensemble.errors import InputError
from ensemble.methods import DEFAULT, check_greedy, list_methods, plugins
from ensemble.models.spec import CHAT_TEMPLATES, DTYPES, ChatTemplate, ModelSpec

EngineName = Literal["local", "ray"]
ENGINES = ("local", "ray")
VerifyOn = Literal["held_out", "dev+held_out"]
VERIFY_ON = ("held_out", "dev+held_out")
Choose = Literal["rules", "predicted", "search"]
CHOOSE = ("rules", "predicted", "search")


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """How a run loads its models and generates.

    Attributes:
        device: The device of candidates that name none; ``auto`` for CUDA, MPS or the CPU, the first that is there.
        dtype: The numeric type of candidates that name none, one of DTYPES.
        chat_template: The use of chat templates for candidates that do not set it, one of CHAT_TEMPLATES.
        max_new_tokens: Tokens after which a response is cut off, at least 1; None for the task's own limit.
        batch_size: Prompts in a batch, at least 1; None to choose a size by the free memory.
        deterministic: Whether each question is answered by itself; see :class:`ensemble.decode.settings.Batch`.
        temperature: 0 for greedy decoding, else the temperature of the draws.
        seed: The seed of the draws, at least 0.
        engine: Where models run, one of ENGINES: in this process, or on a Ray cluster.
        ray_address: The address of the cluster; see :func:`ensemble.distributed.ray_cluster.cluster`.
    """

    device: str = "auto"
    dtype: str = "auto"
    chat_template: ChatTemplate = "auto"
    max_new_tokens: int | None = None
    batch_size: int | None = None
    deterministic: bool = False
    temperature: float = 0.0
    seed: int = 0
    engine: EngineName = "local"
    ray_address: str | None = None

    def __post_init__(self) -> None:
        check_loading(self.dtype, self.chat_template)
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise InputError(f"--max-new-tokens {self.max_new_tokens}: give at least 1")
        check_seed(self.seed)
        check_choice("--engine", self.engine, ENGINES)
        if self.ray_address is not None and self.engine != "ray":
            raise InputError(f"--ray-address {self.ray_address}: --ray-address needs --engine ray; add it")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> InferenceConfig:
        """Read the options of a command, by parameter name. An option that is missing or None has its default value.

        Raises:
            InputError: A value is out of range.
        """
        names = ("device", "dtype", "chat_template", "max_new_tokens", "deterministic", "engine", "ray_address")
        return cls(batch_size=_read_batch_size(options.get("batch_size", "auto")), **_given(options, *names))

    def limit(self, task: Task) -> int:
        """Tokens after which a response to a question of a task is cut off."""
        return self.max_new_tokens or task.max_new_tokens


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What a run does.

    Attributes:
        candidates: The pool.
        dev: The questions that candidates are profiled on.
        held_out: The questions that the chosen set is verified on; None to skip that.
        rules: The limits.
        inference: How models are loaded and generate.
        seed: The seed of every draw and resampling, at least 0.
        cache_dir: The folder of responses and tables.
        command: The command line, for the record.
        race: Accepted probability that a race changes the selection, in (0, 1); None to run every candidate on every
            question.
        confidence: Two-sided, of the intervals of gains, in (0, 1).
        choose: How the set is chosen, one of CHOOSE; see :mod:`advisor.jobs.held_out`.
        tries: The most sets that are decoded to choose one, at least 1; for ``predicted`` and ``search``.
        method: The token-level or span-level method of the set.
        k: Candidates that each member brings to the union, at least 1.
        weights: The weights of a set's members, as text; see :mod:`advisor.pool.weights`.
        verify_on: The questions on which sets decode together, one of VERIFY_ON.
        until_sure: Whether the held-out questions are asked in batches, until the test shows a difference.
        judges: The judge of a task with a rubric, and the second one if there are two; empty for other tasks.
    """

    candidates: tuple[ModelSpec, ...]
    dev: Task
    held_out: Task | None
    rules: Limits
    inference: InferenceConfig
    seed: int
    cache_dir: Path
    command: str
    race: float | None = None
    confidence: float = CONFIDENCE
    choose: Choose = "rules"
    tries: int = TRIES
    method: str = DEFAULT
    k: int = 10
    weights: str = EQUAL
    verify_on: VerifyOn = "held_out"
    until_sure: bool = False
    judges: tuple[ModelSpec, ...] = ()

    def __post_init__(self) -> None:
        check_choice("--verify-on", self.verify_on, VERIFY_ON)
        check_method(self.method, self.k)
        # Candidates are compared by greedy decoding, and so is their set.
        check_greedy(self.method, "use --method gac, which has the same mean; advisor run and advisor serve can draw")
        check_weights(self.weights, len(self.candidates), self.dev)
        check_seed(self.seed)
        _check_levels(self.race, alpha_of(self.confidence))
        check_choice("--choose", self.choose, CHOOSE)
        _check_tries(self.tries)
        _check_judges(self)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], command: str) -> RunConfig:
        """Read the options of ``select`` or ``profile``, by parameter name; the defaults are those of ``select``.

        The pool and the task are read here. :func:`advisor.jobs.session.open_session` checks the models.

        Args:
            options: The options. One that is missing or None has its default value.
            command: The command line, for the record.

        Raises:
            InputError: An option is missing or out of range, or the pool or the task cannot be used.
        """
        if options.get("pool") is None:
            raise InputError("--pool is missing; give a file with one model per line, or demo for the bundled pool")
        check_task_is_given(options)
        # Not taken from here: later commands on this run read the task file, and must get the same splits.
        if (cluster := options.get("cluster")) is not None:
            raise InputError(f"--cluster {cluster} is for logs; write `cluster: {cluster}` into the task file")
        _check_no_logs(options, "--pool")
        inference = InferenceConfig.from_options(options)
        rules = read_rules(options)
        method, k = options.get("method") or DEFAULT, options.get("k", 10)
        seed, level = options.get("seed") or 0, options.get("level", ALPHA)
        verify_on: Any = options.get("verify_on") or "held_out"
        check_choice("--verify-on", verify_on, VERIFY_ON)
        race = _value_of_switch(options, "race", "race_level", ALPHA)
        tries = options.get("tries")
        choose: Choose = options.get("choose") or "rules"
        most = _value_of_switch(options, "until_sure", "max_questions", MOST_QUESTIONS)
        # Checked before the task is loaded as well, because that may take a download.
        check_method(method, k)
        check_seed(seed)
        _check_levels(race, level)
        check_choice("--choose", choose, CHOOSE)
        if tries is not None:
            if choose == "rules":
                raise InputError(f"--tries {tries} has no effect with --choose rules; add --choose predicted or search")
            _check_tries(tries)
        if most is not None:
            if most < 1:
                raise InputError(f"--max-questions {most}: give at least 1")
            if options.get("no_verify"):
                raise InputError(
                    "--until-sure asks held-out questions, but --no-verify asks none; leave out one of them"
                )
        pool = with_quantization(read_pool(options["pool"]), options.get("quantization"))
        candidates = entries_named(pool, split_names(options.get("models") or ""), options["pool"])
        check_keys(candidates, options)
        dev = load_split(options, options.get("split") or "dev")
        dev.check_allowed()
        # A model of the pool that is no candidate may judge.
        judges = read_judges(options, pool, dev)
        held_out = None
        if not options.get("no_verify"):
            # With a limit they come in the order of the seed, so that the first ones are a sample of all.
            held_out = load_split(options if most is None else {**options, "limit": most}, "held_out")
            held_out.check_allowed()
            # A held-out split never has a question of the dev split, but it may have those of another split.
            if dev.split != "dev":
                check_disjoint(dev, held_out, "the held-out ones that the set is verified on", "add --no-verify")
        return cls(
            candidates=candidates,
            dev=dev,
            held_out=held_out,
            rules=rules,
            inference=inference,
            seed=seed,
            cache_dir=options.get("cache_dir") or default_cache_dir(),
            command=command,
            race=race,
            # The option is still the probability of an error on one side.
            confidence=round(1 - 2 * level, 12),
            choose=choose,
            tries=TRIES if tries is None else tries,
            method=method,
            k=k,
            weights=options.get("weights") or EQUAL,
            verify_on=verify_on,
            until_sure=most is not None,
            judges=judges,
        )


@dataclass(frozen=True, slots=True)
class LogsConfig:
    """A run on the responses of logs, in which no model runs.

    Attributes:
        paths: Files, folders and globs.
        options: What the user says about the logs.
        models: Globs of the models to take; empty for all.
        log_format: The name of the one format to consider; None to recognise it.
        log_task: Glob of the evaluation to take; None if the logs have only one.
        scoring: Scores the responses again; None for the scores of the logs.
        dev_size: Questions that choose, at least 1; None for 300, at most half of all.
        rules: The limits.
        seed: The seed of every draw and resampling, at least 0.
        confidence: Two-sided, of the intervals of gains, in (0, 1).
        command: The command line, for the record.
    """

    paths: tuple[str, ...]
    options: LogOptions
    models: tuple[str, ...]
    log_format: str | None
    log_task: str | None
    scoring: Scoring | None
    dev_size: int | None
    rules: Limits
    seed: int
    confidence: float
    command: str

    @classmethod
    def from_options(cls, options: Mapping[str, Any], command: str) -> LogsConfig:
        """Read the options of ``select --logs`` or ``compare``, by parameter name.

        Raises:
            InputError: An option is out of range, or it needs models.
        """
        _check_no_models(options, "logs", "gives responses instead of models")
        seed, level = options.get("seed") or 0, options.get("level", ALPHA)
        check_seed(seed)
        _check_levels(None, level)
        return cls(
            paths=tuple(options["logs"]),
            options=LogOptions(
                score=options.get("score"),
                cluster=options.get("cluster"),
                columns=_read_columns(options.get("column") or ()),
                model_columns=split_names(options.get("model_columns") or ""),
            ),
            models=split_names(options.get("models") or ""),
            log_format=options.get("log_format"),
            log_task=options.get("log_task"),
            scoring=read_scoring(options),
            dev_size=options.get("dev_size"),
            rules=read_rules(options),
            seed=seed,
            # The option is still the probability of an error on one side.
            confidence=round(1 - 2 * level, 12),
            command=command,
        )

    def join(self, paths: Sequence[str], models: Sequence[str], say: Callable[[str], None] | None = None) -> JoinedLogs:
        """Read some of the logs as this configuration says, and join them; see :func:`advisor.logs.join.join_logs`.

        Args:
            paths: The logs.
            models: Globs of the models to take; empty for all.
            say: Shows the notes; None to leave them to the caller.
        """
        notes: Notes = []
        try:
            return join_logs(
                paths,
                self.options,
                models=models,
                only=self.log_format,
                task=self.log_task,
                scoring=self.scoring,
                notes=notes,
            )
        finally:
            # Also before an error: what was left out of a log often is its reason.
            if say is not None:
                for note in notes:
                    say(note)


def read_scoring(options: Mapping[str, Any]) -> Scoring | None:
    """How the options score the responses of logs again: by ``--metric`` and ``--extract``, or as a task file does.

    Raises:
        InputError: The metric does not exist or cannot score logs, or the pattern or the task file cannot be used.
    """
    metric, extract, task = options.get("metric"), options.get("extract"), options.get("task")
    if task is not None:
        if metric is not None or extract is not None:
            raise InputError("--task has a metric and a pattern; leave out --metric and --extract, or --task")
        return Scoring.of_task(task)
    if metric is None:
        if extract is not None:
            raise InputError(f"--extract {extract}: --extract needs --metric; add for example --metric exact_match")
        return None
    return Scoring(metric, extract)


def rules_for_numbers(options: Mapping[str, Any]) -> Limits:
    """The rules of ``select --profiles``, which has numbers instead of models.

    Raises:
        InputError: A limit is out of range, or another option needs models.
    """
    _check_no_models(options, "profiles", "gives numbers instead of models")
    _check_no_logs(options, "--profiles", "models", "cluster")
    return read_rules(options)


def read_rules(options: Mapping[str, Any]) -> Limits:
    """The limits that the options of a command set, by parameter name; ``max_gap`` holds for votes, too.

    Raises:
        InputError: A limit is out of range.
    """
    given = _given(options, "max_gap", "max_length_ratio", "max_models", "max_calls", "min_gain")
    return Limits(**given, **({"vote_gap": given["max_gap"]} if "max_gap" in given else {}))


def load_split(options: Mapping[str, Any], split: str) -> Task:
    """Load one split of the task that the options name; see :func:`advisor.tasks.load_task`."""
    names = ("shots", "limit", "seed", "allow_code_execution", "allow_weak_sandbox")
    return load_task(options["task"], split=split, data_dir=options.get("data"), **_given(options, *names))


def check_keys(candidates: Sequence[ModelSpec], options: Mapping[str, Any]) -> None:
    """Raise InputError if a server's key is in a variable that may hold another secret; see ``--allow-key-env``."""
    for entry in candidates:
        if entry.checkpoint.is_remote:
            entry.checkpoint.check_key_name(options.get("allow_key_env") or (), f"{entry.place}: {entry.name}")


def read_judges(options: Mapping[str, Any], candidates: Sequence[ModelSpec], task: Task) -> tuple[ModelSpec, ...]:
    """The judges that the options name: none, one, or the one that scores and a second one.

    Args:
        options: The options of a command, by parameter name.
        candidates: The models that can be named by their names; a line of a pool file names any other.
        task: The task.

    Raises:
        InputError: A judge is missing, cannot be used, or has no effect.
    """
    given = {option: options.get(option.replace("-", "_")) for option in ("judge", "second-judge")}
    if task.rubric is None:
        for option, line in given.items():
            if line is not None:
                raise InputError(f"--{option} {line}: {task.name} has metric {task.metric}, which needs no judge")
        return ()
    if given["judge"] is None:
        raise InputError(
            f"{task.name} has metric judge; add --judge with the name of a candidate, or a line as in a pool file"
        )
    judges = tuple(_read_judge(f"--{option}", line, candidates) for option, line in given.items() if line is not None)
    check_keys(judges, options)
    if len({judge.name for judge in judges}) < len(judges):
        raise InputError(
            f"--second-judge {judges[1].name}: the first judge has this name, too; give another model, or add "
            "name=ANOTHER to its line"
        )
    return judges


def _read_judge(option: str, line: str, candidates: Sequence[ModelSpec]) -> ModelSpec:
    for candidate in candidates:
        if candidate.name == line.strip():
            return candidate
    # A word is a misspelt candidate rather than a folder or a hub id, unless there is a folder.
    if line.strip() and not any(mark in line for mark in "/:\\ ") and not Path(line.strip()).exists():
        raise InputError(
            f"{option} {line}: no candidate and no folder has this name; give one of them, a hub id, or a server as in "
            "a pool file"
        )
    return read_line(line, option)


def _check_judges(config: RunConfig) -> None:
    """Raise InputError if a task lacks its judge, or the run cannot be judged."""
    if config.dev.rubric is not None and not config.judges:
        raise InputError(f"{config.dev.name} has metric judge, and this run has no judge; give one")
    if config.dev.is_relative and config.race is not None:
        raise InputError(
            "--race asks some candidates only some questions, but `mode: pairwise` compares the responses of all; "
            "leave out --race, or judge with `mode: single`"
        )


def check_task_is_given(options: Mapping[str, Any]) -> None:
    """Raise InputError if the options name no task."""
    if options.get("task") is None:
        raise InputError("--task is missing; give a task file, or a name that `advisor tasks` lists")


def check_disjoint(task: Task, other: Task, other_questions: str, way_out: str) -> None:
    """Check that two splits share no question: models are not judged on the questions that they are chosen by.

    Args:
        task: The split of ``--split``.
        other: Another split of the same task.
        other_questions: The questions of the other split, for the message.
        way_out: What the user can do instead of giving another split.

    Raises:
        InputError: They share a question.
    """
    # By prompt and not by id: two splits from one file often number their questions anew. Later turns of different
    # conversations may have the same words.
    prompts = {example.prompt for example in other.examples if example.earlier is None}
    if shared := sum(example.prompt in prompts for example in task.examples if example.earlier is None):
        raise InputError(
            f"--split {task.split}: {shared} of its {len(task.examples)} questions are among {other_questions}; "
            f"give another split, or {way_out}"
        )


def check_method(method: str, k: int) -> None:
    """Raise InputError if no method that decodes has this name, or k is out of range."""
    names = [name for name, found in list_methods().items() if found.level != "response"]
    plugins().check(method)
    check_choice("--method", method, names)
    if k < 1:
        raise InputError(f"--k {k}: give at least 1")


def check_loading(dtype: str, chat_template: str) -> None:
    """Raise InputError if a numeric type or a use of chat templates does not exist."""
    check_choice("--dtype", dtype, DTYPES)
    check_choice("--chat-template", chat_template, CHAT_TEMPLATES)


def check_seed(seed: int) -> None:
    """Raise InputError if a seed is out of range."""
    if seed < 0:
        raise InputError(f"--seed {seed}: give 0 or more")


def check_choice(option: str, value: str, allowed: Collection[str]) -> None:
    """Raise InputError if the value of an option is not an allowed one."""
    if value not in allowed:
        raise InputError(f"{option} {value}: not one of {', '.join(allowed)}")


def _check_no_models(options: Mapping[str, Any], source: str, what: str) -> None:
    """Raise InputError if an option needs models, for a run that has none."""
    names = ("pool", "race", "choose", "tries", "until_sure", "max_questions", "verify_on", "weights", "judge")
    for name in (*names, "second_judge"):
        # --verify-on and --weights have defaults, which ask for nothing.
        if options.get(name) not in (None, False, "held_out", EQUAL):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} runs models, but --{source} {what}; leave out one of them")


def _check_no_logs(options: Mapping[str, Any], source: str, *more: str) -> None:
    """Raise InputError if an option is for logs, for a run that has none."""
    names = ("log_format", "log_task", "score", "metric", "extract", "column", "model_columns", "dev_size", *more)
    for name in names:
        if options.get(name):
            raise InputError(
                f"--{name.replace('_', '-')} is for --logs and has no effect with {source}; leave out one of them"
            )


def split_names(names: str) -> tuple[str, ...]:
    """The names of an option that takes several, with commas between them."""
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _read_columns(values: Sequence[str]) -> dict[str, str]:
    """The columns of a table by role, from ``ROLE=NAME`` each."""
    columns: dict[str, str] = {}
    for value in values:
        role, equals, name = value.partition("=")
        if not equals or not role or not name:
            raise InputError(f"--column {value}: give ROLE=NAME, for example question=prompt")
        if role in columns:
            raise InputError(f"--column {value}: the role {role} is given twice; give each role once")
        columns[role] = name
    return columns


def _check_levels(race: float | None, level: float) -> None:
    for option, value, most in (("--race-level", race, 1), ("--level", level, 0.5)):
        # Written as a range, so that NaN fails it, too.
        if value is not None and not 0 < value < most:
            example = f"give a probability above 0 and below {most:g}, for example {ALPHA:g}"
            raise InputError(f"{option} {value:g}: {example}")


def _check_tries(tries: int) -> None:
    if tries < 1:
        raise InputError(f"--tries {tries}: give at least 1 set")


def _read_batch_size(text: str) -> int | None:
    if text == "auto":
        return None
    # isdigit alone accepts the digits of other scripts.
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InputError(f"--batch-size {text}: give a number of at least 1, or auto")
    return int(text)


def _value_of_switch(options: Mapping[str, Any], switch: str, name: str, default: Any) -> Any:
    """The value of an option that goes with a switch; None if the switch is off."""
    value, is_on = options.get(name), options.get(switch)
    if value is not None and not is_on:
        option, needed = (f"--{each.replace('_', '-')}" for each in (name, switch))
        raise InputError(f"{option} {value:g} has no effect without {needed}; add {needed}, or leave out {option}")
    if not is_on:
        return None
    return default if value is None else value


def _given(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The options of these names that have a value, as keyword arguments."""
    return {name: options[name] for name in names if options.get(name) is not None}
