"""The models of a run at work: each candidate alone, one in memory at a time, and sets of them together.

A candidate that fails is noted, and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from advisor.config import InferenceConfig, RunConfig
from advisor.pool.fingerprint import identify, model_of
from advisor.profile.engine import Answered, Begun, Ended, Engine, Job
from advisor.profile.generate import Here
from advisor.profile.loader import Decoding, FreshLoader, Loader
from advisor.profile.local_engine import LocalEngine
from advisor.profile.server_answers import ServerAnswerer
from advisor.profile.sheet import Advance, Answerer, Cost, Sheet, question_key
from advisor.progress import Progress
from advisor.records import Profile
from advisor.response_cache import Store
from advisor.servers.identity import ServerIdentity
from advisor.tasks.task import Task
from ensemble.errors import MemberError
from ensemble.models.spec import ModelSpec

if TYPE_CHECKING:
    from ensemble.api import Ensemble


@dataclass(frozen=True, slots=True)
class Profiled:
    """Graded answers, and what they took."""

    profile: Profile
    cost: Cost


@dataclass(frozen=True, slots=True)
class _Asked:
    """Who is asked what, and how.

    Attributes:
        name: Whose answers they are: one candidate's, a method's.
        members: The candidates that answer, the primary first.
        key: What else decides the responses.
    """

    name: str
    members: Sequence[str]
    key: Mapping[str, Any]
    task: Task
    decoding: Decoding
    inference: InferenceConfig

    @property
    def stage(self) -> str:
        """What is said while they answer."""
        who = self.name if len(self.members) == 1 else f"{self.name} of {', '.join(self.members)}"
        return f"{who} on {self.task.split}"


class Profiler:
    """Profiles candidates and sets of them.

    Args:
        plan: What the run does.
        store: Where responses are looked up and kept.
        watcher: Who is told how far it is.
        loader: Where its models come from; fresh from their folders where None, so that few are in memory at a time.
        engine: Where they answer; in this process where None.

    Attributes:
        identities: What decides each candidate's responses, by name.
        failures: Why candidates could not be run, by name.

    Raises:
        InputError: A candidate cannot be used; before any of them is run.
    """

    def __init__(
        self,
        plan: RunConfig,
        store: Store,
        watcher: Progress,
        loader: Loader | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._watcher = watcher
        self._loader = loader or FreshLoader(plan.cache_dir)
        self._engine = engine or LocalEngine()
        self._candidates = {candidate.name: candidate for candidate in plan.candidates}
        self.identities = {
            name: identify(one, plan.inference.dtype, plan.inference.chat_template, store)
            for name, one in self._candidates.items()
        }
        self.failures: dict[str, str] = {}

    def alone(self, names: Sequence[str], task: Task) -> dict[str, Profiled]:
        """Each candidate's answers, by name, without those that failed.

        One alone is an ensemble of one, which decodes exactly as the model itself does.
        """
        asked = [self._candidate(name, task) for name in names]
        results = self._ask(asked)
        # In the order of the names, not in that in which the candidates were done.
        for name in names:
            if isinstance(failure := results[name], MemberError):
                self.failures[name] = str(failure).removeprefix(f"{name}: ")
        return {name: result for name in names if isinstance(result := results[name], Profiled)}

    def together(self, names: Sequence[str], task: Task, decoding: Decoding | None = None) -> Profiled:
        """The answers of a set, the primary first.

        Args:
            names: The set.
            task: The questions.
            decoding: How it decodes; as the plan says where None.

        Raises:
            MemberError: It cannot be run.
        """
        decoding = decoding or self._plan.decoding
        return self._profile(_Asked(decoding.method, names, decoding.key(), task, decoding, self._plan.inference))

    def drawn(self, name: str, task: Task, temperature: float, seed: int) -> Profiled:
        """One candidate's answers, drawn from its whole vocabulary instead of greedy.

        Raises:
            MemberError: It cannot be run.
        """
        inference = replace(self._plan.inference, temperature=temperature, seed=seed)
        whole = Decoding("average")
        return self._profile(_Asked(f"{name}, drawn", [name], whole.key(), task, whole, inference))

    def is_stored(self, names: Sequence[str], task: Task, decoding: Decoding) -> bool:
        """Whether all answers of a set are there already, so that no model has to be loaded."""
        key = self._key(names, decoding.key())
        keys = [question_key(key, example, task, self._plan.inference) for example in task.examples]
        return len(self._store.get(keys)) == len(set(keys))

    def is_remote(self, name: str) -> bool:
        """Whether a candidate is behind a server: it answers, and cannot be loaded."""
        return isinstance(self.identities[name], ServerIdentity)

    def model(self, name: str) -> ModelSpec:
        """A candidate as it is to be loaded.

        Raises:
            InputError: It is behind a server.
        """
        run = self._plan.inference
        return model_of(self._candidates[name], self.identities[name], run.device, run.dtype, run.chat_template)

    def load(self, names: Sequence[str], decoding: Decoding | None = None) -> Ensemble:
        """Load candidates, the primary first; they decode as the plan says where that is left open.

        Raises:
            InputError: One of them is behind a server, or they do not fit the method.
        """
        return self._loader([self.model(name) for name in names], decoding or self._plan.decoding)

    def _candidate(self, name: str, task: Task) -> _Asked:
        """A candidate that is asked alone."""
        if task.metric == "choice" and not self.is_remote(name):
            # The likeliest token is all that writing needs; how likely an option is hangs on the whole vocabulary.
            whole = Decoding("average")
            return _Asked(name, [name], whole.key(), task, whole, self._plan.inference)
        return _Asked(name, [name], {}, task, self._plan.decoding, self._plan.inference)

    def _profile(self, asked: _Asked) -> Profiled:
        result = self._ask([asked])[asked.name]
        if isinstance(result, MemberError):
            raise result
        return result

    def _ask(self, asked: Sequence[_Asked]) -> dict[str, Profiled | MemberError]:
        """The answers of some, each with a name of its own; or why there are none."""
        by_name = {one.name: one for one in asked}
        sheets: dict[str, Sheet] = {}
        advance: dict[str, Advance] = {}
        found: dict[str, Profiled | MemberError] = {}
        with ExitStack() as stages, closing(self._engine.run(self._jobs(asked, sheets))) as events:
            stage = {name: stages.enter_context(ExitStack()) for name in by_name}
            for event in events:
                name = event.job
                one, sheet = by_name[name], sheets[name]
                if isinstance(event, Begun):
                    advance[name] = stage[name].enter_context(self._watcher.stage(one.stage, len(one.task.examples)))
                    advance[name](sheet.stored)
                elif isinstance(event, Answered):
                    sheet.take(event.number, event.response)
                    advance[name](1)
                else:
                    found[name] = result = _closed(sheet, event)
                    stage[name].close()
                    self._say(one, result)
        return found

    def _jobs(self, asked: Sequence[_Asked], sheets: dict[str, Sheet]) -> Iterator[Job]:
        """What is left of each when it is its turn: by then another may have answered the same."""
        for one in asked:
            key = self._key(one.members, one.key)
            sheets[one.name] = sheet = Sheet(one.name, key, one.task, one.inference, self._store)
            yield self._job(one, sheet)

    def _job(self, one: _Asked, sheet: Sheet) -> Job:
        return Job(
            name=one.name,
            answerer=self._answerer(one.name, one.members, one.decoding),
            models=() if any(map(self.is_remote, one.members)) else tuple(map(self.model, one.members)),
            needs=tuple(self._candidates[member].resources for member in one.members),
            decoding=one.decoding,
            asked=sheet.missing,
            task=one.task,
            inference=one.inference,
        )

    def _answerer(self, name: str, members: Sequence[str], decoding: Decoding) -> Answerer:
        """Who answers for some members in this process."""
        identity = self.identities[members[0]]
        if len(members) == 1 and isinstance(identity, ServerIdentity):
            return ServerAnswerer(name, identity.address, chat=identity.chat)
        return Here(name, partial(self.load, members, decoding))

    def _key(self, members: Sequence[str], key: Mapping[str, Any]) -> dict[str, Any]:
        """What decides the responses of some members together."""
        return {"members": [self.identities[member].key() for member in members], **key}

    def _say(self, one: _Asked, result: Profiled | MemberError) -> None:
        """Take note of what failed; of a set, or of draws, that is for who asked."""
        if isinstance(result, MemberError):
            if list(one.members) == [one.name]:
                self._watcher.say(f"{one.name}: {str(result).removeprefix(f'{one.name}: ')}")
            return
        profile = result.profile
        errors = [answer.error for answer in profile.answers if answer.error is not None]
        if errors:
            self._watcher.say(
                f"{profile.model}: {len(errors)} of {len(profile.answers)} questions could not be answered; they count "
                f"as wrong, and not for its mean length; the first: {errors[0]}"
            )


def _closed(sheet: Sheet, end: Ended) -> Profiled | MemberError:
    if end.error is not None:
        return MemberError(end.error)
    try:
        return Profiled(*sheet.close(end.peak_memory))
    except MemberError as error:
        return MemberError(str(error))
