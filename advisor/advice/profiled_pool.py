"""The candidates, profiled on the dev questions, without the copies among them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from advisor.advice.rules import rank, select
from advisor.models.fingerprint import Fingerprint
from advisor.models.profiler import Profiler
from advisor.models.run_config import RunConfig
from advisor.records import Decision, Limits, Profile, Selection
from ensemble.errors import UniteError


@dataclass(frozen=True, slots=True)
class ProfiledPool:
    """The candidates that could be run: the profiles of all but copies, by name, and of copies with their decisions.

    Those that are ``remote`` are behind servers that give whole texts only, so they cannot be decoded with others.
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
    """Profile the candidates that have not failed yet."""
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
    """The pool without the candidates that failed since it was profiled."""
    # A copy of the failed one may stay alone now; and if a judge compared the candidates, their scores are of
    # comparisons with the failed one. So they are profiled again.
    left = {name: profile for name, profile in pool.complete.items() if name not in profiler.failures}
    is_valid = left and not pool.copies and not config.dev.is_relative
    return ProfiledPool(left, remote=_remote(left, profiler)) if is_valid else profile_candidates(config, profiler)


def _remote(names: Iterable[str], profiler: Profiler) -> frozenset[str]:
    return frozenset(name for name in names if not profiler.identities[name].spec.can_decode)


FEWEST_QUESTIONS = 30
"""On fewer questions two models may give equal answers by chance."""


def find_copies(
    profiles: Sequence[Profile], weights: Mapping[str, Hashable] | None = None, apart: Collection[str] = ()
) -> dict[str, str]:
    """The candidates that are the same model as another one, with the reason, by name. The first by rank stays.

    Weights are compared where they are known. A copy that can be decoded with others stays in place of one that is
    `apart`.
    """
    known = weights or {}
    # The first candidate with these weights, and with these answers: its rank and its name.
    by_weights: dict[Hashable, tuple[int, str]] = {}
    by_answers: dict[Hashable, tuple[int, str]] = {}
    reasons = {}
    for place, profile in enumerate(sorted(profiles, key=lambda each: (each.model in apart, rank(each)))):
        keys = (
            (by_weights, known.get(profile.model), "their weights are equal"),
            (by_answers, _telling_answers(profile), f"all {len(profile.answers):,} answers are equal"),
        )
        found = [(*first[key], why) for first, key, why in keys if key is not None and key in first]
        if found:
            _, original, why = min(found, key=lambda each: each[0])
            reasons[profile.model] = f"the same model as {original}: {why}"
            continue
        for first, key, _ in keys:
            if key is not None:
                first[key] = place, profile.model
    return reasons


def copy_decisions(copies: Mapping[str, str]) -> tuple[Decision, ...]:
    """The decisions about copies, from the reason of each by name."""
    return tuple(Decision(name, "rejected", "copy", reason) for name, reason in copies.items())


def _telling_answers(profile: Profile) -> Hashable:
    """All responses of a candidate; None if another model may give the same ones by chance."""
    answers = profile.answers
    # Two models may both be right everywhere. A log without texts, or a failed model, says nothing about the model.
    if len(answers) < FEWEST_QUESTIONS or all(answer.score == 1 for answer in answers):
        return None
    if all(answer.error is not None or (answer.text or answer.extracted) is None for answer in answers):
        return None
    # Cost and group are no answers; the likelihoods of options are.
    return tuple((each.id, each.text, each.extracted, each.score, each.options) for each in answers)
