"""Each token-level method's step against its formula, computed apart in plain Python, on 1,000 random cases.

The members have made-up vocabularies of a dozen tokens over four letters, so that many tokens begin with others, and
random logits. The formulas are those of the papers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference import EOS, Entry, ReferenceVocabulary
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from transformers import PreTrainedTokenizerFast

from ensemble.methods import get_module, make_options
from ensemble.step.sampler import Detokenizer, Draw, Sampler
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import build
from ensemble.vocabulary.joint import entries as numbered
from ensemble.vocabulary.token_bytes import Vocabulary

SETS, ROWS = 40, 25
K = 5
LETTERS = "abcd"
Shares = dict[Entry, float]
"""The probability of each entry."""


class Judge:
    """A member as the formulas see it: what its ids are, and which of them spells an entry."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.vocabulary = ReferenceVocabulary(tokenizer, len(tokenizer), (tokenizer.eos_token_id,))
        self.own: dict[Entry, int] = {**self.vocabulary.candidates, EOS: tokenizer.eos_token_id}

    def id_of(self, entry: Entry) -> int | None:
        """Its token, or the first one of its spelling."""
        if isinstance(entry, str) or entry in self.own:
            return self.own[entry]
        first = self.vocabulary.continuation(entry)[:1]
        return first[0] if first and first[0] in self.vocabulary.candidate_ids else None

    def emitted(self, entry: Entry) -> Entry:
        """The entry of the token by which it spells an entry."""
        return next(own for own, token in self.own.items() if token == self.id_of(entry))

    def top(self, z: Sequence[float]) -> list[Entry]:
        return sorted(self.own, key=lambda entry: (-z[self.own[entry]], self.own[entry]))[:K]

    def whole(self, z: Sequence[float]) -> Shares:
        """Its probabilities of all its tokens."""
        return normalised({entry: math.exp(z[token]) for entry, token in self.own.items()})

    def on(self, union: set[Entry], z: Sequence[float]) -> Shares:
        """Steps 4 and 5 of UNITE."""
        ids = {entry: self.id_of(entry) for entry in union}
        return normalised({entry: 0.0 if token is None else math.exp(z[token]) for entry, token in ids.items()})


@dataclass(frozen=True)
class Case:
    """A step of one text: the members, their logits and weights, and whether the primary's token keeps their ids."""

    judges: Sequence[Judge]
    z: Sequence[Sequence[float]]
    weights: Sequence[float]
    is_safe: bool

    @property
    def united(self) -> list[Shares]:
        """Steps 1 to 5 of UNITE, for each member."""
        union = {entry for judge, z in zip(self.judges, self.z, strict=True) for entry in judge.top(z)}
        return [judge.on(union, z) for judge, z in zip(self.judges, self.z, strict=True)]

    @property
    def alone(self) -> Shares:
        """The primary's top k."""
        return self.judges[0].on({*self.judges[0].top(self.z[0])}, self.z[0])

    def likeliest(self, shares: Shares) -> Entry:
        """Of the entries that the primary can express; its own tokens go before what it spells with them."""
        first = self.judges[0]
        return max((e for e in shares if first.id_of(e) is not None), key=lambda e: (shares[e], e in first.own))


def normalised(powers: Shares) -> Shares:
    total = sum(powers.values())
    return {entry: power / total for entry, power in powers.items()}


def mean_of(members: Sequence[Shares], weights: Sequence[float]) -> Shares:
    found: Shares = {}
    for own, weight in zip(members, weights, strict=True):
        for entry, share in own.items():
            found[entry] = found.get(entry, 0.0) + weight * share
    return found


# The formulas


def of_unite(case: Case) -> Shares:
    return mean_of(case.united, case.weights)


def of_geometric(case: Case) -> Shares:
    united = case.united
    return normalised(
        {entry: math.prod(own[entry] ** a for own, a in zip(united, case.weights, strict=True)) for entry in united[0]}
    )


def of_gac(case: Case) -> Shares:
    return mean_of([judge.whole(z) for judge, z in zip(case.judges, case.z, strict=True)], case.weights)


def of_gac_threshold(case: Case) -> Shares:
    first = case.judges[0].whole(case.z[0])
    return first if max(first.values()) > 0.5 else of_gac(case)


def edits(one: bytes, other: bytes) -> int:
    row = [*range(len(other) + 1)]
    for n, left in enumerate(one):
        before, row[0] = row[0], n + 1
        for m, right in enumerate(other):
            before, row[m + 1] = row[m + 1], min(row[m] + 1, row[m + 1] + 1, before + (left != right))
    return row[-1]


def of_mined(case: Case) -> Shares:
    first = case.judges[0]
    mapped = []
    for judge, z in zip(case.judges, case.z, strict=True):
        moved = dict.fromkeys(first.own, 0.0)
        for entry, share in judge.whole(z).items():
            near = {to: edits(entry, to) for to in first.own if isinstance(to, bytes) and isinstance(entry, bytes)}
            moved[entry if entry in first.own else min(near, key=lambda to: (near[to], first.own[to]))] += share
        mapped.append(normalised(moved))
    return mean_of(mapped, case.weights)


def of_safe(case: Case, threshold: float = 0.1) -> Shares:
    """Sections 3.2 and 3.3 of the paper."""
    united, mean = case.united, of_unite(case)
    drafted = case.likeliest(united[0])
    unanimous = all(own[drafted] == max(own.values()) for own in united[1:])
    if not case.is_safe or unanimous or mean[drafted] > 0.5:
        return case.alone
    if max(mean.values()) >= 0.5:
        return mean
    takers = {t for t, share in mean.items() if isinstance(t, bytes) and t in case.judges[0].own and share > threshold}
    moved = dict.fromkeys(mean, 0.0)
    for entry, share in mean.items():
        begun = [t for t in takers if isinstance(entry, bytes) and isinstance(t, bytes) and entry.startswith(t)]
        moved[min(begun, key=len) if begun else entry] += share
    # The paper's equation: each taker's probability, and those of all others that begin with it.
    collected = {
        t: sum(p for u, p in mean.items() if isinstance(u, bytes) and isinstance(t, bytes) and u.startswith(t))
        for t in takers
    }
    assert max(moved.values()) == pytest.approx(max({**mean, **collected}.values()), abs=1e-12)
    return moved


FORMULAS: dict[str, tuple[str, dict[str, object], Callable[[Case], Shares]]] = {
    "unite": ("unite", {}, of_unite),
    "geometric": ("geometric", {}, of_geometric),
    "average": ("average", {}, of_gac),
    "gac": ("gac", {}, of_gac),
    "gac-threshold": ("gac-threshold", {}, of_gac_threshold),
    "mined": ("mined", {}, of_mined),
    "safe": ("safe", {}, of_safe),
    "safe, 0.2": ("safe", {"sharpen": 0.2}, partial(of_safe, threshold=0.2)),
}


# The product


@cache
def tokenizers(number: int, *, alike: bool) -> list[PreTrainedTokenizerFast]:
    """Two or three vocabularies; alike ones have the same tokens with other ids."""
    chance = random.Random(number)
    made: list[PreTrainedTokenizerFast] = []
    words: list[str] = []
    for _ in range(chance.choice([2, 3])):
        if not (alike and words):
            # One vocabulary may lack a letter, so that it cannot express some entries.
            letters = LETTERS[: chance.choice([3, 4, 4])]
            longer = {"".join(chance.choices(letters, k=chance.randint(2, 4))) for _ in range(12)}
            words = [*letters, *sorted(longer)]
        words = chance.sample(words, len(words))
        model = Unigram([("<unk>", 0.0), ("</s>", 0.0), *[(w, -float(n % 5)) for n, w in enumerate(words)]], unk_id=0)
        made.append(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), eos_token="</s>", unk_token="<unk>"))
    return made


def setup_of(backends: Sequence[PreTrainedTokenizerFast], weights: Sequence[float]) -> Setup:
    vocabularies = [Vocabulary(each, (), len(each)) for each in backends]
    members: list[Any] = [
        SimpleNamespace(vocabulary=each, device=torch.device("cpu"), name=f"m{n}", is_here=True)
        for n, each in enumerate(vocabularies)
    ]
    return Setup(members, build(vocabularies), K, tuple(weights))


def random_logits(chance: random.Random, judges: Sequence[Judge]) -> list[list[list[float]]]:
    """For each member its logits [rows, V]: what all find likely, and each member's difference from it."""
    rows: list[list[list[float]]] = [[] for _ in judges]
    for _ in range(ROWS):
        common: dict[Entry, float] = {}
        strength, spread = chance.uniform(0.3, 3), chance.uniform(0.1, 2)
        for judge, own in zip(judges, rows, strict=True):
            z = [chance.gauss(0, 1) for _ in range(judge.vocabulary.rows)]
            for entry, token in judge.own.items():
                z[token] = common.setdefault(entry, strength * chance.gauss(0, 1)) + spread * chance.gauss(0, 1)
            own.append(z)
    return rows


def step_of(rule: TokenRule, logits: Sequence[torch.Tensor], is_safe: Sequence[bool]) -> Iterator[tuple[Any, int]]:
    """For each row the distribution from which the sampler chooses, and the row in it."""
    step = rule.combine([z.clone() for z in logits])
    is_open = [True] * ROWS
    if rule.needs_others is not None:
        is_open = rule.needs_others(logits[0].clone()).tolist()
    if rule.gate is not None:
        is_open = rule.gate(step, lambda row, _: is_safe[row])
    step = step if rule.revise is None else rule.revise(step)
    alone = step if rule.primary_alone is None else rule.primary_alone([logits[0].clone()])
    for row in range(ROWS):
        yield (step if is_open[row] else alone), row


@pytest.mark.parametrize("name", FORMULAS)
def test_a_step_is_the_formula_in_1000_random_cases(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "mappings"))
    method, options, formula = FORMULAS[name]
    different, farthest = 0, 0.0
    for number in range(SETS):
        backends = tokenizers(number, alike=method == "average")
        judges = [Judge(each) for each in backends]
        chance = random.Random(f"{name} {number}")
        heavy = [chance.uniform(0.2, 1) for _ in judges]
        weights = [each / sum(heavy) for each in heavy]
        setup = setup_of(backends, weights)
        names = {entry: data for data, entry in numbered([m.vocabulary for m in setup.members]).items()}
        rule = get_module(method).make(setup, make_options(method, options))
        rows = random_logits(chance, judges)
        logits = [torch.tensor(own, dtype=torch.float64) for own in rows]
        is_safe = [chance.random() < 0.8 for _ in range(ROWS)]
        texts = Detokenizer([m.vocabulary for m in setup.members], setup.joint)
        sampler = Sampler(rule, len(judges), texts, trace=False)
        waiting = {"run": lambda member, rows, logits=logits: logits[member][[*rows]]} if rule.needs_others else {}
        sampled = sampler([z.clone() for z in logits], [Draw()] * ROWS, lambda row, _, s=is_safe: s[row], **waiting)  # type: ignore[misc]
        for step, row in step_of(rule, logits, is_safe):
            case = Case(judges, [own[row] for own in rows], weights, is_safe[row])
            expected = formula(case)
            there = zip(step.entries[row].tolist(), step.present[row].tolist(), step.mean[row].tolist(), strict=True)
            got = {names.get(entry, EOS): share for entry, is_there, share in there if is_there}
            assert got.keys() >= {entry for entry, share in expected.items() if share}
            farthest = max(farthest, *(abs(share - expected.get(entry, 0.0)) for entry, share in got.items()))
            winner = case.likeliest(expected)
            token = judges[0].own.get(winner) if method.startswith("gac") else judges[0].id_of(winner)
            different += sampled[row].token not in (token, None) and token is not None
    assert (different, SETS * ROWS) == (0, 1000)
    assert farthest < 1e-9
