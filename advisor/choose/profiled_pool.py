"""The candidates, profiled on the dev questions, without the copies among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from advisor.choose.copies import copy_decisions, find_copies
from advisor.choose.rules import select
from advisor.config import RunConfig
from advisor.pool.fingerprint import Fingerprint
from advisor.profile.profiler import Profiler
from advisor.records import Decision, Limits, Profile, Selection
from ensemble.errors import UniteError


@dataclass(frozen=True, slots=True)
class ProfiledPool:
    """The candidates that could be run.

    Attributes:
        complete: The profiles of all others, by name.
        copies: The profiles of copies of another candidate.
        rejected: The decisions about these.
        remote: The names of the candidates behind servers that give whole texts only. They cannot be decoded with
            others.
    """

    complete: Mapping[str, Profile]
    copies: Mapping[str, Profile] = field(default_factory=dict)
    rejected: tuple[Decision, ...] = ()
    remote: frozenset[str] = frozenset()

    @property
    def profiles(self) -> dict[str, Profile]:
        """All profiles, by name."""
        return {**self.complete, **self.copies}

    @property
    def best(self) -> str:
        """The most accurate candidate, wherever it runs."""
        return self._select(Limits()).selected[0]

    def select(self, rules: Limits) -> Selection:
        """Apply the rules to the candidates that are no copies.

        The set is chosen among the candidates that can be decoded together. If no two of them fit, it is chosen among
        all, with those that give whole texts only.
        """
        if 0 < len(self.remote) < len(self.complete):
            # Where fewer than two can be decoded together, a vote among all is still possible.
            selection = self._select(rules, self.rejected, self.remote)
            if len(selection.selected) > 1:
                return selection
        return self._select(rules, self.rejected)

    def voters(self, rules: Limits) -> tuple[str, ...]:
        """The set that the rules choose among all candidates, if one of its members gives whole texts; else empty."""
        selected = self._select(rules).selected
        return selected if len(selected) > 1 and self.remote.intersection(selected) else ()

    def _select(self, rules: Limits, copies: Sequence[Decision] = (), apart: frozenset[str] = frozenset()) -> Selection:
        return select([profile.standing for profile in self.complete.values()], rules, copies, apart)


def profile_candidates(config: RunConfig, profiler: Profiler) -> ProfiledPool:
    """Profile the candidates that have not failed yet.

    Raises:
        UniteError: All candidates failed.
    """
    names = [candidate.name for candidate in config.candidates if candidate.name not in profiler.failures]
    profiles = profiler.alone(names, config.dev)
    if not profiles:
        name, reason = next(iter(profiler.failures.items()))
        raise UniteError(f"none of the {len(profiler.failures)} candidates could be run; {name}: {reason}")
    identities = profiler.identities.items()
    weights = {name: identity.weights for name, identity in identities if isinstance(identity, Fingerprint)}
    found = find_copies(list(profiles.values()), weights, _remote(profiles, profiler))
    left = {name: profile for name, profile in profiles.items() if name not in found}
    copies = {name: profiles[name] for name in found}
    return ProfiledPool(left, copies, copy_decisions(found), _remote(left, profiler))


def without_failed(pool: ProfiledPool, config: RunConfig, profiler: Profiler) -> ProfiledPool:
    """The pool without the candidates that failed since it was profiled.

    Raises:
        UniteError: All candidates failed.
    """
    # A copy of the failed one may stay alone now; and if a judge compared the candidates, their scores are of
    # comparisons with the failed one. So they are profiled again.
    left = {name: profile for name, profile in pool.complete.items() if name not in profiler.failures}
    is_valid = left and not pool.copies and not config.dev.is_relative
    return ProfiledPool(left, remote=_remote(left, profiler)) if is_valid else profile_candidates(config, profiler)


def _remote(names: Iterable[str], profiler: Profiler) -> frozenset[str]:
    return frozenset(name for name in names if not profiler.decodes(name))
