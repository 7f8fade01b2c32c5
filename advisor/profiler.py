"""The models of a run at work: each candidate alone, one in memory at a time, and sets of them together.

A candidate that fails is noted, and the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from advisor.answering import Here, free_memory
from advisor.identity import identify, model_of
from advisor.loading import Decoding, FreshLoader, Loader, Model
from advisor.plan import Plan
from advisor.profiling import Answerer, Cost, profile, question_key
from advisor.records import Profile
from advisor.remote.answering import There
from advisor.remote.identity import RemoteIdentity
from advisor.setting import Setting
from advisor.store import Store
from advisor.tasks.values import Task
from advisor.watching import Watcher
from ensemble.errors import MemberError

if TYPE_CHECKING:
    from ensemble.ensemble import Ensemble


@dataclass(frozen=True, slots=True)
class Profiled:
    """Graded answers, and what they took."""

    profile: Profile
    cost: Cost


class Profiler:
    """Profiles candidates and sets of them.

    Args:
        plan: What the run does.
        store: Where responses are looked up and kept.
        watcher: Who is told how far it is.
        loader: Where its models come from; fresh from their folders where None, so that few are in memory at a time.

    Attributes:
        identities: What decides each candidate's responses, by name.
        failures: Why candidates could not be run, by name.

    Raises:
        InputError: A candidate cannot be used; before any of them is run.
    """

    def __init__(self, plan: Plan, store: Store, watcher: Watcher, loader: Loader | None = None) -> None:
        self._plan = plan
        self._store = store
        self._watcher = watcher
        self._loader = loader or FreshLoader(plan.cache_dir)
        self._candidates = {candidate.name: candidate for candidate in plan.candidates}
        self.identities = {name: identify(one, plan.setting, store) for name, one in self._candidates.items()}
        self.failures: dict[str, str] = {}

    def alone(self, names: Sequence[str], task: Task) -> dict[str, Profiled]:
        """Each candidate's answers, by name, without those that failed.

        One alone is an ensemble of one, which decodes exactly as the model itself does.
        """
        found = {}
        for name in names:
            try:
                found[name] = self._profile(name, {}, [name], task)
            except MemberError as error:
                self.failures[name] = str(error).removeprefix(f"{name}: ")
                self._watcher.say(f"{name}: {self.failures[name]}")
            if name in self.failures:
                # Only here, behind the handler, nothing refers to the model any more.
                free_memory()
        return found

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
        return self._profile(decoding.method, decoding.key(), names, task, decoding)

    def drawn(self, name: str, task: Task, temperature: float, seed: int) -> Profiled:
        """One candidate's answers, drawn from its whole vocabulary instead of greedy.

        Raises:
            MemberError: It cannot be run.
        """
        setting = replace(self._plan.setting, temperature=temperature, seed=seed)
        whole = Decoding("average")
        return self._profile(f"{name}, drawn", whole.key(), [name], task, whole, setting)

    def is_stored(self, names: Sequence[str], task: Task, decoding: Decoding) -> bool:
        """Whether all answers of a set are there already, so that no model has to be loaded."""
        key = self._key(names, decoding.key())
        keys = [question_key(key, example, task, self._plan.setting) for example in task.examples]
        return len(self._store.get(keys)) == len(set(keys))

    def is_remote(self, name: str) -> bool:
        """Whether a candidate is behind a server: it answers, and cannot be loaded."""
        return isinstance(self.identities[name], RemoteIdentity)

    def model(self, name: str) -> Model:
        """A candidate as it is to be loaded.

        Raises:
            InputError: It is behind a server.
        """
        return model_of(self._candidates[name], self.identities[name], self._plan.setting)

    def load(self, names: Sequence[str], decoding: Decoding | None = None) -> Ensemble:
        """Load candidates, the primary first; they decode as the plan says where that is left open.

        Raises:
            InputError: One of them is behind a server, or they do not fit the method.
        """
        return self._loader([self.model(name) for name in names], decoding or self._plan.decoding)

    def _profile(
        self,
        name: str,
        key: Mapping[str, Any],
        members: Sequence[str],
        task: Task,
        decoding: Decoding | None = None,
        setting: Setting | None = None,
    ) -> Profiled:
        answerer, setting = self._answerer(name, members, decoding), setting or self._plan.setting
        who = name if len(members) == 1 else f"{name} of {', '.join(members)}"
        with self._watcher.stage(f"{who} on {task.split}", len(task.examples)) as advance:
            found = Profiled(*profile(name, self._key(members, key), answerer, task, setting, self._store, advance))
        self._say_errors(found.profile)
        return found

    def _answerer(self, name: str, members: Sequence[str], decoding: Decoding | None) -> Answerer:
        """Who answers for some members."""
        identity = self.identities[members[0]]
        if len(members) == 1 and isinstance(identity, RemoteIdentity):
            return There(name, identity.remote, identity.chat)
        return Here(name, partial(self.load, members, decoding))

    def _key(self, members: Sequence[str], key: Mapping[str, Any]) -> dict[str, Any]:
        """What decides the responses of some members together."""
        return {"members": [self.identities[member].key() for member in members], **key}

    def _say_errors(self, profile: Profile) -> None:
        errors = [answer.error for answer in profile.answers if answer.error is not None]
        if errors:
            self._watcher.say(
                f"{profile.model}: {len(errors)} of {len(profile.answers)} questions could not be answered; they count "
                f"as wrong, and not for its mean length; the first: {errors[0]}"
            )
