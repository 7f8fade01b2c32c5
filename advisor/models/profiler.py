"""Profiles the models of a run: each candidate alone, and sets of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from advisor.models.ask import Model
from advisor.models.fingerprint import identify, model_of
from advisor.models.fit import device_of
from advisor.models.job import Job, next_turns, profile_in_turns, stored_texts
from advisor.models.likelihood import ReadSet, SetReader, texts_of
from advisor.models.loaded_models import ALONE, JobRunner, LoadedModels, LocalJobRunner
from advisor.models.local_model import LocalModel
from advisor.models.own_prompts import asked_of
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import (
    ACCURACY,
    EQUAL,
    LIKELIHOOD,
    RunConfig,
    read_numbers,
)
from advisor.models.server_model import ServerIdentity, ServerModel
from advisor.progress import Progress
from advisor.records import TOLERANCE, Profile, join
from advisor.tasks.task import Task
from ensemble.decode.settings import Settings
from ensemble.errors import MemberError, UniteError
from ensemble.methods import DEFAULT, get_method, plugins
from ensemble.models.spec import THINK, EnsembleSpec, ModelSpec
from ensemble.servers.client import RETRIES

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.models.member import Member


# The method "average" gives the probabilities of the whole vocabulary, which sampling and the likelihoods of options
# need; all other single models only need their likeliest token. Its k is unused, but part of existing cache keys.
_WHOLE_VOCABULARY = EnsembleSpec((), ALONE, k=10)


class Profiler:
    """Profiles candidates and sets of them; if a candidate fails, the others continue."""

    def __init__(
        self,
        config: RunConfig,
        cache: ResponseCache,
        progress: Progress,
        *,
        engine: JobRunner | None = None,
    ) -> None:
        self._config = config
        self._cache = cache
        self._progress = progress
        self._engine = engine or LocalJobRunner(config.cache_dir)
        self._on_dev: dict[str, Profile] = {}
        self._reader: SetReader | None = None
        self._said: list[ReadSet] = []
        self._candidates = {candidate.name: candidate for candidate in config.candidates}
        # What determines each candidate's responses.
        self.identities = {
            name: identify(
                candidate,
                config.options.dtype,
                config.options.chat_template,
                device_of(candidate, config.options.device, config.cluster.engine),
                settings=config.dev.settings,
                keep_hashes=not cache.read_only,
            )
            for name, candidate in self._candidates.items()
        }
        self.failures: dict[str, str] = {}
        self._unused: set[str] = set()
        for name, identity in self.identities.items():
            if not isinstance(identity, ServerIdentity):
                continue
            if identity.lacks is not None:
                progress.say(f"{name}: {identity.lacks}; until then it gives whole texts")
            if identity.address.left_out:
                fields = ", ".join(identity.address.left_out)
                drawn = "; its responses may be drawn at random" if "temperature" in identity.address.left_out else ""
                progress.say(f"{name}: requests leave out {fields}, which its server or its line does not take{drawn}")
        for name, candidate in self._candidates.items():
            checkpoint = candidate.checkpoint
            budget = checkpoint.thinking_budget if checkpoint.is_remote else candidate.thinking_budget
            limit = candidate.max_new_tokens or config.dev.max_new_tokens
            if budget is not None and budget >= limit and config.dev.metric != "choice":
                progress.say(
                    f"{name}: thinking_budget={budget} leaves no room for an answer: a response has at most {limit} "
                    "tokens, thinking included; give a lower budget, or more tokens with --max-new-tokens"
                )

    @property
    def models(self) -> LoadedModels:
        """The models that were loaded in this process; those of the run's judges are among them."""
        return self._engine.models

    def alone(self, names: Sequence[str], task: Task) -> dict[str, Profile]:
        """Profile candidates, each alone; the profiles by name, without the candidates that failed."""

        def run(turns: Mapping[str, Task]) -> Iterator[tuple[str, Profile | MemberError]]:
            jobs = (self._job(name, [name], turn, self._single(name, turn)) for name, turn in turns.items())
            for job in self._run(jobs):
                if isinstance(job.result, MemberError):
                    self._progress.say(f"{job.name}: {job.result.without(job.name)}")
                yield job.name, job.result

        results = profile_in_turns(names, task, run)
        # In the order of the names: jobs that run at the same time finish in any order.
        for name in names:
            if isinstance(result := results[name], MemberError):
                self.failures[name] = result.without(name)
            else:
                self._say_no_thinking(result)
        return {name: result for name in names if isinstance(result := results[name], Profile)}

    def together(
        self, names: Sequence[str], task: Task, method: str | None = None, options: Mapping[str, Any] | None = None
    ) -> Profile:
        """Profile a set, the primary first, by the run's own method or by another one with its options."""
        decoding = self.decoding(names, method, options)
        stage = f"{decoding.method} of {', '.join(names)}"
        return self._run_one(task, lambda turn: self._job(decoding.method, names, turn, decoding, stage=stage))

    def drawn(self, name: str, task: Task, temperature: float, seed: int) -> Profile:
        """Profile a candidate with sampling from its whole vocabulary."""
        settings = replace(self.asked([name], task).settings, temperature=temperature, seed=seed)
        return self._run_one(task, lambda turn: self._job(f"{name}, drawn", [name], turn, _WHOLE_VOCABULARY, settings))

    def reading(self, name: str, task: Task, stage: str) -> Profile:
        """Profile a candidate on questions whose prompts have responses in them."""
        # Another answer takes the place of one that failed, so failures are for the caller to report.
        return self._run_one(
            task, lambda turn: self._job(name, [name], turn, self._single(name, turn), stage=stage), says_errors=False
        )

    def graded(self, profile: Profile, names: Sequence[str], task: Task) -> Profile:  # noqa: ARG002  # for a judge
        """A profile with the scores that a judge gives after all texts are written."""
        return profile

    def stored_alone(self, name: str, task: Task) -> dict[str, str | None]:
        """The candidate's responses that the cache has, by the ids of their questions; None for one that failed."""
        return self._stored([name], self._single(name, task), task)

    def is_stored(self, names: Sequence[str], task: Task, method: str, options: Mapping[str, Any]) -> bool:
        """Whether the cache has all responses of a set, so that no model has to be loaded."""
        said = self._stored(names, self.decoding(names, method, options), task)
        return not next_turns(task, said).examples

    def _stored(self, names: Sequence[str], decoding: EnsembleSpec | None, task: Task) -> dict[str, str | None]:
        thinking = self._candidates[names[0]].thinking
        return stored_texts(self._cache, self.key(names, decoding), self.asked(names, task), thinking)

    def asked(self, names: Sequence[str], task: Task) -> Task:
        """A task as a candidate is asked it, or a set, the primary first."""
        return asked_of(task, [self._candidates[name] for name in names])

    def model(self, name: str) -> ModelSpec:
        """The spec of a candidate."""
        return model_of(self._candidates[name], self.identities[name], self._config.options.dtype)

    def family(self, name: str) -> str:
        """What a candidate has in common with other sizes of its family; its name if it is behind a server."""
        from ensemble.models.model_files import family_of

        return name if self._candidates[name].is_remote else family_of(self.model(name).weights)

    def load(
        self, names: Sequence[str], method: str | None = None, options: Mapping[str, Any] | None = None
    ) -> Ensemble:
        """Load candidates as an ensemble, the primary first."""
        spec = replace(self.decoding(names, method, options), members=tuple(map(self.model, names)))
        return self._engine.models.ensemble(spec)

    def read_sets(self, sets: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], ReadSet]:
        """What sets, the primary first, make of right texts; see :mod:`advisor.models.likelihood`."""
        if self._reader is None:
            here = [name for name, each in self._candidates.items() if not each.is_remote]
            answered = self._profiled_on_dev([name for name in here if name not in self.failures])
            self._reader = SetReader(
                self._engine.models,
                self._cache,
                self._progress,
                self._config.dev,
                texts_of(self._config.dev, answered),
                {name: self.model(name) for name in answered},
                {name: self.identities[name].key() for name in answered},
                self._config.options.k,
            )
        return self._reader.read(sets)

    def _profiled_on_dev(self, names: Sequence[str]) -> dict[str, Profile]:
        """The profiles on the dev questions, by name, without those that failed."""
        if missing := [name for name in names if name not in self._on_dev and name not in self.failures]:
            # Mostly stored already: the candidates were profiled on these questions.
            self._on_dev |= self.alone(missing, self._config.dev)
        return {name: self._on_dev[name] for name in names if name in self._on_dev}

    def weights(self, names: Sequence[str], method: str | None = None) -> tuple[float, ...] | None:
        """The weights of a set's members, as ``--weights`` says, by the run's own method or another; None for equal."""
        kind = self._config.options.weights
        is_default = (method or self._config.options.method) == DEFAULT and self._config.cluster.engine == "local"
        if kind is None and not is_default:
            # With these weights steps are right that `unite` joins; and of a cluster this machine may hold no model.
            kind = EQUAL
        if kind == EQUAL or len(names) == 1:
            return None
        if kind in (None, LIKELIHOOD):
            return self._by_likelihood(names)
        if kind != ACCURACY:
            numbers = dict(zip(self._candidates, read_numbers(kind), strict=True))
            return tuple(numbers[name] for name in names)
        answered = self._profiled_on_dev(names)
        for name in names:
            if name not in answered:
                raise MemberError(self.failures[name], of=name)
        weights = tuple(answered[name].accuracy / 100 for name in names)
        if not any(weights):
            # Of this set alone: another one may have weights.
            raise MemberError(f"--weights {ACCURACY}: the weights of all members are 0; leave out --weights")
        return weights

    def _by_likelihood(self, names: Sequence[str]) -> tuple[float, ...] | None:
        """The weights with which a set writes right texts best; None for equal ones."""
        is_asked = self._config.options.weights == LIKELIHOOD
        try:
            found = self.read_sets([tuple(names)]).get(tuple(names))
        except MemberError as error:
            if is_asked:
                raise
            self._progress.say(f"{error}; the weights of {join(names)} are equal")
            return None
        if found is None and is_asked:
            raise MemberError(
                f"--weights {LIKELIHOOD}: {join(names)} cannot all read right texts here: one of them is behind a "
                "server, or no response is right; give --weights accuracy, or numbers"
            )
        if found is None:
            return None
        if found not in self._said:
            self._said.append(found)
            self._progress.say(f"the weights of {join(names)} are {found}")
        return found.weights if max(found.weights) - min(found.weights) > TOLERANCE else None

    def decoding(
        self, names: Sequence[str], method: str | None = None, options: Mapping[str, Any] | None = None
    ) -> EnsembleSpec:
        """How a set decodes, without its members: by the run's own method, or by another one with its options."""
        config = self._config.options
        method, options = method or config.method, dict(options or {})
        # Of a single model, the thinking is read from its response.
        if config.think is not None and len(names) > 1 and get_method(method).level == "token":
            options.setdefault(THINK, config.think)
        return EnsembleSpec((), method, config.k, self.weights(names, method), options)

    def _single(self, name: str, task: Task) -> EnsembleSpec | None:
        """How a candidate decodes alone."""
        # Draws and likelihoods of options need the whole vocabulary; a server computes them itself.
        candidate = self._candidates[name]
        needs_all = task.metric == "choice" or bool(candidate.temperature)
        return _WHOLE_VOCABULARY if needs_all and not candidate.is_remote else None

    def _job(
        self,
        name: str,
        members: Sequence[str],
        task: Task,
        decoding: EnsembleSpec | None,
        settings: Settings | None = None,
        stage: str = "",
    ) -> Job:
        """A job for some members. Without a ``decoding``, a single model decodes as it does alone."""
        identity, loaded = self.identities[members[0]], self._engine.models
        batch_size = self._config.options.batch_size
        connect: Callable[[], Model]
        if len(members) == 1 and isinstance(identity, ServerIdentity):
            own = EnsembleSpec((identity.spec,))

            def load() -> Member:
                (member,) = loaded.ensemble(own).members
                return member

            connect = partial(ServerModel, replace(identity.spec, name=name), load=load, retries=RETRIES)
            spec, server = None, identity.address.url
        else:
            server = ""
            spec = replace(decoding or self.decoding(members), members=tuple(map(self.model, members)))
            connect = partial(LocalModel, name, partial(loaded.ensemble, spec), batch_size, loaded.make_room)
        task = self.asked(members, task)
        turn = 1 + len(task.examples[0].exchanges)
        return Job(
            name,
            task,
            settings or task.settings,
            connect,
            key=self.key(members, decoding),
            cache=self._cache,
            progress=self._progress,
            stage=f"{stage or name} on {task.split}" + (f", turn {turn}" if turn > 1 else ""),
            spec=spec,
            server=server,
            # A set writes in its primary's tokens, and so with its tags.
            thinking=self._candidates[members[0]].thinking,
            batch_size=batch_size,
        )

    def key(self, members: Sequence[str], decoding: EnsembleSpec | None) -> dict[str, Any]:
        """What determines the responses of some members, besides the questions."""
        key: dict[str, Any] = {"members": [self.identities[member].key() for member in members]}
        if decoding is None:
            return key
        weights = {} if decoding.weights is None else {"weights": decoding.weights}
        version = get_method(decoding.method).version
        changed = {} if version == 1 else {"version": version}
        key |= {"method": decoding.method, "k": decoding.k, **changed, **weights, **decoding.options}
        # Alone, a model's tags only part the responses that are stored. Together, the answer begins after them.
        tags = [self._candidates[member].thinking for member in members]
        if THINK in decoding.options and any(tags):
            key["tags"] = [each and each.option for each in tags]
        # A newer version of a plug-in may decode differently. Keys of the methods of this project stay as they were.
        if package := plugins().package(decoding.method):
            key["package"] = package
        return key

    def _run_one(self, task: Task, job: Callable[[Task], Job], *, says_errors: bool = True) -> Profile:
        """Run a task with the job that answers it, or one turn of it."""

        def run(turns: Mapping[str, Task]) -> Iterator[tuple[str, Profile | MemberError]]:
            for name, turn in turns.items():
                [finished] = self._run([job(turn)], says_errors=says_errors)
                yield name, finished.result

        # The job has the name that is shown.
        [result] = profile_in_turns([""], task, run).values()
        if isinstance(result, MemberError):
            raise result
        return result

    def _run(self, jobs: Iterable[Job], *, says_errors: bool = True) -> Iterator[Job]:
        """Run jobs, and yield each when it is finished."""
        with ExitStack() as displays:

            def watched() -> Iterator[Job]:
                for job in jobs:
                    # An interrupted job leaves no progress bar behind.
                    displays.callback(job.close)
                    yield job

            # closing: at Ctrl-C the engine's generator must stop its workers now, not at garbage collection.
            with closing(self._engine.run(watched())) as finished:
                for job in finished:
                    if says_errors and isinstance(job.result, Profile):
                        self._say_errors(job.result)
                    yield job

    def _say_errors(self, profile: Profile) -> None:
        errors = [answer.error for answer in profile.answers if answer.error is not None]
        if errors:
            self._progress.say(
                f"{profile.model}: {len(errors)} of {len(profile.answers)} questions could not be answered; they count "
                f"as wrong, and not for its mean length; the first: {errors[0]}"
            )

    def _say_no_thinking(self, profile: Profile) -> None:
        candidate = self._candidates[profile.model]
        tags, budget = candidate.thinking, candidate.thinking_budget
        named = [f"thinking={tags.option}"] if tags else []
        # A budget of 0 is kept where nothing is thought.
        named += [f"thinking_budget={budget}"] if budget else []
        if profile.model not in self._unused and named and not any(answer.thought for answer in profile.answers):
            # Once, though several splits are asked.
            self._unused.add(profile.model)
            self._progress.say(
                f"{profile.model}: none of its {len(profile.answers)} responses has thinking, so {' and '.join(named)} "
                "has no effect; leave it out, or name the tags that the model writes with thinking=OPENING...CLOSING"
            )


Said = dict[str, str | None]
"""Responses by the ids of their questions; None for one that failed."""


def stored_responses(config: RunConfig, entries: Sequence[ModelSpec]) -> dict[str, tuple[Said, ...]]:
    """The responses of candidates that the cache has, by name: those to the dev questions, and to the held-out ones."""
    # What is stored of a server depends on what it says today, and it gets no request here.
    here = [entry for entry in entries if not entry.is_remote]
    if not here or not (config.cache_dir / "responses.sqlite").is_file():
        return {}
    found: dict[str, tuple[Said, ...]] = {}
    try:
        with ResponseCache(config.cache_dir, read_only=True) as cache:
            for entry in here:
                # One by one: a candidate that cannot be used must not hide what is stored of the others.
                own = replace(config, candidates=(entry,), options=replace(config.options, weights=None))
                try:
                    alone = Profiler(own, cache, Progress(quiet=True))
                except UniteError:
                    continue  # the check of the pool reports the problem
                found[entry.name] = tuple(alone.stored_alone(entry.name, task) for task in splits_of(config))
    except UniteError:
        return {}  # the run itself reports a cache that cannot be read, or replaces it
    return found


def is_profiled(config: RunConfig, entry: ModelSpec) -> bool:
    """Whether the cache has all responses of a candidate to the dev questions, so that a run can go on without it."""
    stored = stored_responses(config, [entry]).get(entry.name)
    return stored is not None and unanswered(config.dev, stored[0]) == 0


def unanswered(task: Task, said: Said) -> int:
    """How many questions of a task are still to be answered; none come after a response that failed."""
    ended: set[str | None] = {number for number, text in said.items() if text is None}
    left = 0
    for example in task.examples:
        if example.earlier is not None and example.earlier in ended:
            ended.add(example.id)
        else:
            left += example.id not in said
    return left


def splits_of(config: RunConfig) -> list[Task]:
    """The dev questions, and the held-out ones if the run has any."""
    return [config.dev, *([] if config.held_out is None else [config.held_out])]
