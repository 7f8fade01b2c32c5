"""MinED and EVA: token mappings against slow implementations, averages on the primary's vocabulary, and the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein
from test_methods import member
from tiny import tiny_model, tokenizer_named
from torch import Tensor

from ensemble import Ensemble
from ensemble.errors import InputError
from ensemble.methods import get_module, make_options
from ensemble.methods._token_mapping import TokenMapping, common_and_foreign, load_or_make
from ensemble.methods.eva import faithful, projection
from ensemble.methods.mined import nearest
from ensemble.models.load import member_of
from ensemble.models.member import Member
from ensemble.step.distribution import Distribution
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import EOS, build

quick = settings(max_examples=50, deadline=None, derandomize=True)
METHODS = ("mined", "eva")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def rule(name: str, members: Sequence[Member], weights: Sequence[float] | None = None, **options: Any) -> TokenRule:
    joint = build([one.vocabulary for one in members])
    shares = tuple(weights or [1 / len(members)] * len(members))
    made = get_module(name).make(Setup(members, joint, 10, shares), make_options(name, options))
    assert isinstance(made, TokenRule)
    return made


def logits_of(members: Sequence[Member], rows: int, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    sizes = [one.vocabulary.size for one in members]
    return [3 * torch.randn(rows, size, generator=random, dtype=torch.float64) for size in sizes]


def softmax(values: Sequence[float]) -> list[float]:
    exponentials = [math.exp(value - max(values)) for value in values]
    return [value / sum(exponentials) for value in exponentials]


def candidates(one: Member) -> dict[bytes | None, int]:
    """A member's tokens and their ids, EOS (None) being one."""
    return one.vocabulary.representatives | {None: one.vocabulary.eos_ids[0]}


Table = dict[bytes | None, dict[bytes | None, float]]
"""For each token of a member the tokens of the primary that it goes to, and how much of it."""


def plain_mean(
    members: Sequence[Member], logits: Sequence[Tensor], weights: Sequence[float], maps: Sequence[Table]
) -> dict[int, float]:
    """The weighted mean of the primary's probabilities and the others' mapped ones, by the primary's ids."""
    own = candidates(members[0])
    mean = dict.fromkeys(own.values(), 0.0)
    for one, z, weight, table in zip(members, logits, weights, maps, strict=True):
        ids = candidates(one)
        shares = dict(zip(ids, softmax([float(z[index]) for index in ids.values()]), strict=True))
        mapped = dict.fromkeys(own, 0.0)
        for token, share in shares.items():
            for to, part in table[token].items():
                mapped[to] += share * part
        for token, share in mapped.items():
            mean[own[token]] += weight * share / sum(mapped.values())
    return mean


def itself(one: Member) -> Table:
    return {token: {token: 1.0} for token in candidates(one)}


def probabilities(step: Distribution, row: int = 0) -> dict[int, float]:
    return dict(zip(step.ids[row].tolist(), step.mean[row].tolist(), strict=True))


def plain_mined(primary: Member, other: Member) -> Table:
    own = candidates(primary)
    table: Table = {}
    for token in candidates(other):
        if token in own:
            table[token] = {token: 1.0}
        elif token is not None:
            distances = {to: Levenshtein.distance(token, to) for to in own if to is not None}
            table[token] = {min(distances, key=lambda to: (distances[to], own[to])): 1.0}
    return table


def plain_eva(primary: Member, other: Member, cells: int, threshold: float) -> Table:
    """The mapping as the docstring defines it."""
    mine, theirs = candidates(primary), candidates(other)
    one, two = (unit_vectors(who, ids) for who, ids in ((primary, mine), (other, theirs)))
    common = [token for token in theirs if token in mine]
    x, y = (torch.stack([vectors[token] for token in common]) for vectors in (two, one))
    if x.shape[1] == y.shape[1]:
        left, _, right = torch.linalg.svd(x.T @ y)
        matrix = left @ right
    else:
        matrix = torch.linalg.lstsq(x, y, driver="gelsd").solution
    table: Table = {token: {token: 1.0} for token in common}
    for token in theirs.keys() - mine.keys():
        ranked = sorted(((cosine(two[token] @ matrix, one[to]), mine[to], to) for to in mine), key=lambda r: -r[0])
        best = [(likeness, to) for likeness, _, to in ranked[:cells] if likeness >= threshold]
        middle = sum(likeness for likeness, _ in best) / max(1, len(best))
        deviation = math.sqrt(sum((likeness - middle) ** 2 for likeness, _ in best) / max(1, len(best)))
        flat = len(best) > 5 and deviation <= 0.01
        table[token] = {} if flat else {to: likeness / sum(v for v, _ in best) for likeness, to in best}
    return table


def unit_vectors(one: Member, ids: dict[bytes | None, int]) -> dict[bytes | None, Tensor]:
    head: Any = one.model.get_output_embeddings()
    vectors = torch.stack([head.weight[index] / head.weight[index].norm() for index in ids.values()]).detach()
    around = vectors - vectors.mean(dim=0)
    return dict(zip(ids, around / around.norm(dim=1, keepdim=True), strict=True))


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def wider() -> Member:
    """A member whose embeddings have another width than the others'."""
    return member_of(tiny_model(tokenizer_named("unigram"), 3, hidden=24), tokenizer_named("unigram"), name="wider")


def test_mined_follows_its_definition() -> None:
    members = [member("bytes"), member("unigram", 1), member("unigram with bytes", 2)]
    weights, logits = [0.5, 0.3, 0.2], logits_of(members, 1)
    maps = [itself(members[0]), *(plain_mined(members[0], other) for other in members[1:])]
    expected = plain_mean(members, [z[0] for z in logits], weights, maps)
    step = rule("mined", members, weights).combine([z.clone() for z in logits])
    assert probabilities(step) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("width", ["the same width", "another width"])
@pytest.mark.parametrize("given", [{}, {"cells": 3, "threshold": 0.4}])
def test_eva_follows_its_definition(width: str, given: dict[str, Any]) -> None:
    members = [member("bytes"), member("unigram", 1) if width == "the same width" else wider()]
    weights, logits = [0.6, 0.4], logits_of(members, 1)
    table = plain_eva(*members, given.get("cells", 10), given.get("threshold", 0.1))
    expected = plain_mean(members, [z[0] for z in logits], weights, [itself(members[0]), table])
    step = rule("eva", members, weights, agree=0, **given).combine([z.clone() for z in logits])
    assert probabilities(step) == pytest.approx(expected, abs=1e-8)


@quick
@given(
    st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=8),
    st.lists(st.binary(min_size=1, max_size=4), unique=True, min_size=1, max_size=12),
)
def test_the_nearest_of_all_tokens_is_found_and_the_lowest_id_of_several(
    wanted: list[bytes], among: list[bytes]
) -> None:
    ids = {data: 7 * n % 13 for n, data in enumerate(among)}
    slow = [min(ids, key=lambda to: (Levenshtein.distance(data, to), ids[to])) for data in wanted]
    assert nearest(wanted, ids) == [ids[to] for to in slow]


def test_a_token_is_mapped_to_a_similar_spelling() -> None:
    assert nearest([b"get", b"Mass"], {b"gets": 3, b"ass": 1, b"Massachusetts": 2}) == [3, 1]


def test_common_tokens_are_those_whose_bytes_both_have() -> None:
    members = [member("bytes"), member("unigram", 1)]
    one, two = (candidates(who) for who in members)
    common, foreign = common_and_foreign(build([who.vocabulary for who in members]), 1)
    assert {tuple(pair) for pair in common.T.tolist()} == {(two[t], one[t]) for t in two if t in one}
    assert {*foreign.tolist()} == {index for token, index in two.items() if token not in one}


@pytest.mark.parametrize("name", METHODS)
def test_rows_do_not_see_each_other(name: str) -> None:
    members = [member("bytes"), member("unigram", 1), member("unigram with bytes", 2)]
    made, logits = rule(name, members), logits_of(members, 3)
    together = made.combine([z.clone() for z in logits])
    for row in range(3):
        alone = made.combine([z[row : row + 1].clone() for z in logits])
        assert torch.allclose(alone.mean[0], together.mean[row], atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_probabilities_sum_to_one(name: str) -> None:
    members = [member("unigram"), member("bytes", 1)]
    step = rule(name, members).combine(logits_of(members, 2))
    assert torch.allclose(step.members.sum(dim=2), torch.ones(2, 2, dtype=torch.float64))
    assert torch.allclose(step.mean.sum(dim=1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("name", METHODS)
def test_identical_members_give_the_members_own_choice(name: str, tmp_path: Path) -> None:
    own = member("bytes")
    alone = Ensemble([own], cache_dir=tmp_path).generate(["The cat"], max_new_tokens=12)
    copies = Ensemble([own, own], method=name, cache_dir=tmp_path).generate(["The cat"], max_new_tokens=12)
    assert copies[0].tokens == alone[0].tokens


@pytest.mark.parametrize("name", METHODS)
def test_a_nan_logit_makes_its_row_nan(name: str) -> None:
    members = [member("bytes"), member("unigram", 1)]
    logits = logits_of(members, 2)
    logits[1][0, members[1].vocabulary.representatives[b"J"]] = math.nan
    step = rule(name, members).combine(logits)
    assert step.mean[0].isnan().any()
    assert not step.mean[1].isnan().any()


@pytest.mark.parametrize("name", METHODS)
def test_scoring_is_in_double_precision(name: str) -> None:
    members = [member("bytes"), member("unigram", 1)]
    step = rule(name, members).combine([z.float() for z in logits_of(members, 1)], also=torch.tensor([[1]]))
    assert step.mean.dtype == torch.float64


@pytest.mark.parametrize("name", [*METHODS, "deepen"])
def test_members_of_different_precision_go_together(name: str) -> None:
    single = member_of(
        tiny_model(tokenizer_named("unigram"), 1, dtype=torch.float32), tokenizer_named("unigram"), name="single"
    )
    for members in ([member("bytes"), single], [single, member("bytes")]):
        logits = [z.to(one.model.dtype) for z, one in zip(logits_of(members, 2), members, strict=True)]
        step = rule(name, members).combine(logits)
        assert torch.allclose(step.mean.sum(dim=1).double(), torch.ones(2, dtype=torch.float64), atol=1e-5)


def test_eos_is_mapped_to_eos() -> None:
    members = [member("bytes"), member("unigram", 1)]
    logits = [torch.zeros(1, one.vocabulary.size, dtype=torch.float64) for one in members]
    logits[1][0, members[1].vocabulary.eos_ids[0]] = 50
    step = rule("mined", members).combine(logits)
    assert int(step.entries[0, step.members[1, 0].argmax()]) == EOS


def test_a_member_that_disagrees_with_all_others_is_left_out() -> None:
    members = torch.tensor([[[0.5, 0.3, 0.1, 0.1]], [[0.3, 0.5, 0.1, 0.1]], [[0.0, 0.1, 0.2, 0.7]]])
    weights = torch.tensor([[0.5], [0.3], [0.2]])
    assert faithful(2)(members, weights).flatten().tolist() == pytest.approx([0.625, 0.375, 0])
    assert faithful(4)(members, weights).flatten().tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_all_members_stay_if_none_agree() -> None:
    members = torch.eye(3)[:, None]
    weights = torch.tensor([[0.5], [0.3], [0.2]])
    assert faithful(1)(members, weights).flatten().tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_the_projection_recovers_a_rotation() -> None:
    random = torch.Generator().manual_seed(0)
    own = torch.randn(40, 6, generator=random, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=random, dtype=torch.float64)).Q
    assert torch.allclose(projection(zip((own @ rotation.T).split(7), own.split(7), strict=True)), rotation, atol=1e-10)


def test_a_mapping_is_made_once_and_again_where_the_file_is_damaged(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> TokenMapping:
        made.append(1)
        return TokenMapping(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([1.0, 0.5]))

    first, again = load_or_make("key", make, tmp_path), load_or_make("key", make, tmp_path)
    assert again.share.tolist() == first.share.tolist()
    assert len(made) == 1
    load_or_make("another key", make, tmp_path)
    assert len(made) == 2
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(b"damaged")
    load_or_make("key", make, tmp_path)
    assert len(made) == 3


def test_eva_saves_a_mapping_for_each_pair_of_embeddings(tmp_path: Path) -> None:
    for seed in (1, 2, 1):
        rule("eva", [member("bytes"), member("unigram", seed)])
    assert len([*tmp_path.rglob("*.safetensors")]) == 2


class _Headless:
    """A model without output embeddings."""

    def get_output_embeddings(self) -> None:
        return None


def test_a_model_without_output_embeddings_is_refused() -> None:
    own = member("unigram", 1)
    headless = replace(own.local, model=_Headless())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^method eva: it needs output embeddings, and unigram-1 has none"):
        rule("eva", [member("bytes"), headless])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"cells": 0}, "cells is 0"), ({"threshold": 0.0}, "threshold is 0.0"), ({"agree": -1}, "agree is -1")],
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        make_options("eva", options)
