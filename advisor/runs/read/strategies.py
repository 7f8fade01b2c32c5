"""The strategies of ``result.json`` and the recommended one, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from advisor.runs.read.fields import Fields, Interval
from advisor.runs.read.measurements import Measurements, measurements

_MOST_STRATEGIES = 100  # a run has about ten; a page of thousands would be of no use
_MOST_GROUPS = 1000  # a run gives no gains for more
_ASKING = frozenset({"single", "vote", "weighted_vote", "cascade", "router", "group_router", "self_consistency"})
Shown = Literal["yes", "not_yet", "no"]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The gain of a strategy on a group of the questions, in points.

    Attributes:
        n: The group's questions.
        observed: The gain on these questions alone.
        gain: The estimated gain, shrunk towards the overall gain, with its interval ``gain_ci``.
        shown: Whether the test shows a gain in this group.
    """

    group: str
    n: int
    observed: float | None
    gain: float | None
    gain_ci: Interval | None
    shown: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRow(Measurements):
    """A way to answer questions, compared on the held-out questions.

    ``delta`` is its measured gain over the best single model, and ``p_value`` is one-sided and corrected for the number
    of strategies; None for one model.

    Attributes:
        members: The models; a cascade asks them in this order.
        weights: Of their votes; empty where all have the same.
        routes: For a router by groups, pairs of a group and the model that answers it.
        draws: Responses of the one member, for self-consistency.
        best_single_model: The most accurate model on the dev and held-out questions together.
        gained: Questions that it answers right and the best single model wrong; ``lost`` the reverse.
        shown: Whether the test shows the gain; None for one model.
        calls: Responses that a question takes, on average, as ``tokens`` and ``seconds_each``.
        price: Of 1,000 questions, in dollars.
        predicted: The gain that was predicted from single models' answers, with ``predicted_ci``.
        expected: The gain to expect in use: the measured one and the predicted one together.
        groups: The gain in each group of the questions, if there are several.
    """

    members: tuple[str, ...]
    weights: tuple[float, ...]
    routes: tuple[tuple[str, str], ...]
    draws: int
    best_single_model: str
    gained: int | None
    lost: int | None
    shown: Shown | None
    calls: float | None
    tokens: float | None
    seconds_each: float | None
    price: float | None
    predicted: float | None
    predicted_ci: Interval | None
    expected: float | None
    groups: tuple[GroupRow, ...]

    @property
    def is_single(self) -> bool:
        """Whether it is one model that answers once, with which the others are compared."""
        return self.name == "single"

    @property
    def is_decoded(self) -> bool:
        """Whether it is a set that decodes together; its name is then the method."""
        return self.name not in _ASKING


@dataclass(frozen=True, slots=True)
class Recommended:
    """The strategy to run.

    Attributes:
        row: Its figures.
        gain: The expected gain over the best single model, in points, with its interval ``gain_ci``.
        shown: Whether the test shows it.
        text: The recommendation in sentences.
    """

    row: StrategyRow
    gain: float | None
    gain_ci: Interval | None
    shown: Shown
    text: str


@dataclass(frozen=True, slots=True)
class Strategies:
    """All strategies, the best first.

    Attributes:
        rows: The first of them.
        total: How many the file has.
        alone: Each model that answered the held-out questions alone; empty in results of older versions.
        recommended: None if nothing was compared on held-out questions. Its row is one of ``rows`` if it is there.
    """

    rows: tuple[StrategyRow, ...] = ()
    total: int = 0
    alone: tuple[StrategyRow, ...] = ()
    recommended: Recommended | None = None


def read_strategies(root: Fields) -> Strategies:
    """Read ``strategies`` and ``advice.recommendation``."""
    parts = root.parts("strategies")
    rows = tuple(map(_row, parts[:_MOST_STRATEGIES]))
    alone = tuple(map(_alone, root.parts("alone")[:_MOST_STRATEGIES]))
    told = root.part("advice").optional_part("recommendation")
    if told is None:
        return Strategies(rows, len(parts), alone)
    own = _row(told)
    # The file may be edited, and recommend what it does not compare.
    row = next((each for each in rows if _key(each) == _key(own)), own)
    recommended = Recommended(
        row=row,
        gain=told.number("expected_gain"),
        gain_ci=told.interval("expected_gain_ci"),
        shown=_shown(told),
        text=told.line("text"),
    )
    return Strategies(rows, len(parts), alone, recommended)


def _key(row: StrategyRow) -> tuple[str, tuple[str, ...], int]:
    return row.name, row.members, row.draws


def _row(fields: Fields) -> StrategyRow:
    name = fields.line("strategy") or fields.refuse("strategy", "the strategy's name")
    fields.check("members", "a list of names", _are_names, required=True)
    numbers = measurements(fields)
    # The file has other names for the two, because a gain is always against the best single model.
    numbers |= {"delta": fields.number("gain"), "delta_ci": fields.interval("gain_ci")}
    numbers |= {"p_value": fields.number("p_adjusted")}
    return StrategyRow(
        name=name,
        **numbers,
        members=fields.texts("members"),
        weights=fields.numbers("weights"),
        routes=fields.part("routes").items(),
        draws=fields.count("draws", 1),
        best_single_model=fields.line("best_single_model"),
        gained=fields.optional_count("gained"),
        lost=fields.optional_count("lost"),
        shown=None if name == "single" or fields.values.get("shown") is None else _shown(fields),
        calls=fields.number("calls_per_question"),
        tokens=fields.number("tokens_per_question"),
        seconds_each=fields.number("seconds_per_question"),
        price=fields.number("price_per_1000"),
        predicted=fields.number("predicted_gain"),
        predicted_ci=fields.interval("predicted_gain_ci"),
        expected=fields.number("expected_gain"),
        groups=tuple(map(_group, fields.parts("groups")[:_MOST_GROUPS])),
    )


def _alone(fields: Fields) -> StrategyRow:
    name = fields.line("model") or fields.refuse("model", "the model's name")
    single = {"strategy": "single", "members": [name], "calls_per_question": 1}
    return _row(Fields(fields.values | single, fields.place, fields.way_out))


def _group(fields: Fields) -> GroupRow:
    return GroupRow(
        group=fields.line("group") or fields.refuse("group", "the group's name"),
        n=fields.count("n"),
        observed=fields.number("observed"),
        gain=fields.number("gain"),
        gain_ci=fields.interval("gain_ci"),
        shown=_shown(fields),
    )


def _shown(fields: Fields) -> Shown:
    return cast(Shown, fields.word("shown", get_args(Shown), "not_yet"))


def _are_names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)
