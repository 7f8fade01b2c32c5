"""The strategies, one file each: what could run in production.

To add a strategy whose answers are replies of its members, add one file here; no other code changes. It needs a
subclass of :class:`~advisor.strategies.strategy.Strategy` with a ``KIND``, the strategy's name, and these methods:
``learn`` (from answers), ``flow`` (asks the members a question), and its words: ``title``, ``describe``, ``headline``.
Its fields are its keys in files. One that writes a new text has an ``author``. It takes new calls, so users ask for it
by an option with its name, a field of ``VerificationOptions``: ``check_options`` refuses what cannot be, and
``asked_for`` makes the strategy. A run drives its ``flow`` with models, and a dry run with unknown replies, to count
its calls and their tokens. A strategy that reads answers, not only texts, sets ``COUNTS``; otherwise replies have none.
`self_consistency.py` is a short example; the calls of `fusion.py` have new prompts. `strategy.py` also has the two that
all others know: one model alone, and a set that decodes together.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from types import GenericAlias

from advisor.options.shared import VerificationOptions
from advisor.strategies.strategy import Decoded, Strategy

ADVICE = "learned_vote"
"""The strategy that is recommended where answers can be counted: to choose among several gains nothing (docs/pools.md).
Where it learned nothing that the plain vote does not have, it is the default strategy."""
DEFAULT = "vote"
"""The strategy that needs no labels, and that looks at held-out questions test."""


@cache
def kinds() -> Mapping[str, type[Strategy]]:
    """The strategies but sets that decode together, by name, the simplest first."""
    found: dict[str, type[Strategy]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(import_module(f"{__name__}.{module.name}")).values():
            # Python 3.10 takes list[int] for a class.
            is_class = isinstance(value, type) and not isinstance(value, GenericAlias)
            if is_class and issubclass(value, Strategy) and value.KIND:
                found[value.KIND] = value
    return dict(sorted(found.items(), key=lambda each: each[1].SIMPLICITY))


def default_strategy(members: Sequence[str]) -> Strategy:
    """The default strategy of these members."""
    return kinds()[DEFAULT](tuple(members))


def tested(name: str, members: Sequence[str]) -> Strategy:
    """The strategy that looks at held-out questions test: the default one, or a set that decodes by a method."""
    return default_strategy(members) if name == DEFAULT else Decoded(tuple(members), name)


def asked_for(
    options: VerificationOptions, names: Sequence[str], best: Sequence[str], voters: Sequence[str]
) -> list[Strategy]:
    """The strategies with new calls that the options ask for; see :meth:`Strategy.asked_for`."""
    return [each for kind in kinds().values() for each in kind.asked_for(options, names, best, voters)]


def largest_default(strategies: Sequence[Strategy]) -> Strategy | None:
    """The default strategy with the most members among several; None if none of them is one."""
    own = [each for each in strategies if each.KIND == DEFAULT]
    return max(own, key=lambda each: len(each.members), default=None)


def label(strategy: Strategy, others: Sequence[Strategy]) -> str:
    """The name by which ``--strategy`` chooses a strategy: ``vote``, or more where others of a run have the same name.

    What alone has a detail is named by it: ``vote/3``. Without one, its place among all of this name tells it apart:
    ``fusion#2``.
    """
    same = [each for each in others if each.name == strategy.name]
    rest = [each for each in same if each != strategy]
    if not rest:
        return strategy.name
    own = (detail for detail in strategy.details if not any(detail in each.details for each in rest))
    detail = next(own, None)
    return f"{strategy.name}#{1 + same.index(strategy)}" if detail is None else f"{strategy.name}/{detail}"
