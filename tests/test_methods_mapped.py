"""MinED, EVA and DeePEn against slow implementations: mappings of tokens and their cache, and blocks of Eq. 2 to 7."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein
from tiny import byte_tokenizer, member
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import _mapping, deepen, get_module, make_options
from ensemble.methods._mapping import TokenMapping, load_or_make
from ensemble.methods.eva import Options, alignment
from ensemble.methods.mined import nearest
from ensemble.models.member import Member
from ensemble.step.distribution import Distribution
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import build
from ensemble.vocabulary.token_bytes import Vocabulary

quick = settings(max_examples=25, deadline=None, derandomize=True)
METHODS = ("mined", "eva")
Array = npt.NDArray[np.float64]


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


def candidates(one: Member) -> dict[bytes | None, int]:
    """A member's tokens and their ids, EOS (None) being one."""
    return one.vocabulary.representatives | {None: one.vocabulary.eos_ids[0]}


Table = dict[bytes | None, dict[bytes | None, float]]
"""For each token of a member the tokens of the primary that it goes to, and how much of it."""


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


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def vectors_of(one: Member) -> Array:
    """The output embeddings of a member's candidates: length 1, centred, length 1."""
    head: Any = one.local.model.get_output_embeddings()
    rows = unit(head.weight.detach().numpy()[list(candidates(one).values())])
    return unit(rows - rows.mean(axis=0))


def plain_alignment(x: Array, z: Array) -> tuple[Array, Array]:
    """VecMap's supervised mapping, step by step on the matrices of common tokens themselves."""
    parts = [np.linalg.svd(side, full_matrices=False) for side in (x, z)]
    white = [vt.T @ np.diag(1 / s) @ vt for _, s, vt in parts]
    left, s, right = np.linalg.svd((x @ white[0]).T @ (z @ white[1]), full_matrices=False)
    turns = [white[0] @ left @ np.diag(np.sqrt(s)), white[1] @ right.T @ np.diag(np.sqrt(s))]
    back = [left.T @ np.linalg.inv(white[0]) @ left, right @ np.linalg.inv(white[1]) @ right.T]
    return turns[0] @ back[0], turns[1] @ back[1]


def plain_eva(primary: Member, other: Member, given: Options) -> Table:
    """The mapping as the docstring defines it, with all cosines in one matrix."""
    mine, theirs = [*candidates(primary)], [*candidates(other)]
    x, z = vectors_of(other), vectors_of(primary)
    both = [token for token in theirs if token in mine]
    ways = plain_alignment(x[[theirs.index(t) for t in both]], z[[mine.index(t) for t in both]])
    cosines = unit(x @ ways[0]) @ unit(z @ ways[1]).T
    likeness = 2 * cosines - cosines.max(axis=0)
    table: Table = {}
    for token, row in zip(theirs, likeness, strict=True):
        if token is None:
            table[token] = {token: 1.0}
            continue
        ranked = sorted(((value, to) for value, to in zip(row, mine, strict=True) if to), key=lambda r: -r[0])
        best = {to: float(value) for value, to in ranked[: given.cells] if value >= given.threshold}
        flat = len(best) > 5 and np.std([*best.values()]) <= 0.01
        table[token] = {} if flat else best
    return table


def plain_top(z: Array, top: int) -> Array:
    return np.where(z >= np.sort(z)[-top:].min(), z, -np.inf) if top else z


def plain_step(
    members: Sequence[Member], logits: Sequence[Array], weights: Sequence[float], maps: Sequence[Array], given: Options
) -> Array:
    """The mean [tokens of the primary] of one row, by matrices [tokens of a member, tokens of the primary]."""
    mapped = []
    for one, z, matrix in zip(members, logits, maps, strict=True):
        kept = plain_top(z[[*candidates(one).values()]], given.top)
        p = np.exp(kept - kept.max())
        mapped.append(p / p.sum() @ matrix)
    agreeing = [
        any(row.argmax() in other.argsort()[-given.agree :] for other in mapped if other is not row) for row in mapped
    ]
    stay = agreeing if given.agree and any(agreeing) else [True] * len(mapped)
    total = sum(weight * row for weight, row, stays in zip(weights, mapped, stay, strict=True) if stays)
    return np.asarray(total / np.sum(total))


def as_matrix(primary: Member, other: Member, table: Table) -> Array:
    mine, theirs = [*candidates(primary)], [*candidates(other)]
    matrix = np.zeros((len(theirs), len(mine)))
    for row, token in enumerate(theirs):
        for to, share in table[token].items():
            matrix[row, mine.index(to)] = share
    return matrix


def with_embeddings(one: Member, weight: object) -> Member:
    """A member of whose model only the embeddings are there, with this weight."""
    layer = SimpleNamespace(weight=weight)
    model: Any = SimpleNamespace(get_input_embeddings=lambda: layer, get_output_embeddings=lambda: layer)
    return replace(one.local, model=model)


def random_members(names: Sequence[str], widths: Sequence[int], seed: int) -> list[Member]:
    """Members with embeddings of given widths that resemble each other: random, in part by the tokens' bytes."""
    random = np.random.default_rng(seed)
    members: list[Member] = []
    for name, width in zip(names, widths, strict=True):
        own = member(name).local
        weight = random.normal(size=(own.vocabulary.size, width))
        for token, index in candidates(own).items():
            weight[index] += 2 * np.random.default_rng([*(token or b"")]).normal(size=64)[:width]
        members.append(with_embeddings(own, torch.tensor(weight)))
    return members


CASES = 8
NAMES = ("bytes", "unigram", "unigram with bytes")
EVA: list[dict[str, Any]] = [{}, {"cells": 3}, {"threshold": 0.4}, {"top": 10}, {"top": 0, "agree": 1}, {"agree": 0}]


@pytest.mark.parametrize("name", METHODS)
def test_a_step_equals_an_independent_computation(name: str) -> None:
    """48 random steps: six random ensembles, with other options each, and eight random rows each."""
    for seed in range(6):
        random = np.random.default_rng(seed)
        names = random.choice(NAMES, size=2 + seed % 2, replace=False)
        members = random_members(names, random.choice([12, 16, 20], size=len(names)), seed)
        weights = random.dirichlet(np.ones(len(names))).tolist()
        options = EVA[seed] if name == "eva" else {}
        given = Options(**options) if name == "eva" else Options(top=0, agree=0)
        mapper = partial(plain_eva, given=given) if name == "eva" else plain_mined
        tables = [itself(members[0]), *(mapper(members[0], other) for other in members[1:])]
        maps = [as_matrix(members[0], one, table) for one, table in zip(members, tables, strict=True)]
        logits = logits_of(members, CASES, seed)
        step = rule(name, members, weights, **options).combine([z.clone() for z in logits])
        for row in range(CASES):
            expected = plain_step(members, [z[row].numpy() for z in logits], weights, maps, given)
            by_id = dict(zip(candidates(members[0]).values(), expected, strict=True))
            assert probabilities(step, row) == pytest.approx(by_id, abs=1e-9)


def test_scored_tokens_keep_their_probability() -> None:
    members = random_members(["bytes", "unigram"], [16, 16], 0)
    unlikely = candidates(members[0])[b"J"]
    logits = logits_of(members, 1)
    logits[0][0, unlikely] = -9
    drawn = rule("eva", members, top=1).combine([z.clone() for z in logits])
    scored = rule("eva", members, top=1).combine([z.clone() for z in logits], also=torch.tensor([[1]]))
    assert probabilities(drawn)[unlikely] == 0
    assert probabilities(scored)[unlikely] > 0


def test_a_member_without_a_target_has_no_weight() -> None:
    members = random_members(["bytes", "unigram"], [16, 16], 0)
    logits = logits_of(members, 1)
    alone = rule("eva", members[:1], top=0).combine([logits[0].clone()])
    step = rule("eva", members, top=1, threshold=1.0, agree=0).combine([z.clone() for z in logits])
    assert step.members[1].sum() == 0
    assert float(step.mean.max()) == 1
    assert step.mean.argmax() == alone.mean.argmax()


@pytest.mark.parametrize("name", METHODS)
def test_eos_does_not_count_where_the_primary_has_none(name: str) -> None:
    members = random_members(["bytes", "unigram"], [16, 16], 0)
    endless = byte_tokenizer(("ab",))
    endless.eos_token = None
    vocabulary = Vocabulary(endless, (), members[0].vocabulary.size)
    members[0] = replace(members[0].local, vocabulary=vocabulary)
    logits = [torch.zeros(1, one.vocabulary.size, dtype=torch.float64) for one in members]
    logits[1][0, members[1].vocabulary.eos_ids[0]] = 900
    step = rule(name, members).combine(logits)
    assert torch.equal(step.mean, step.members[0])


def test_few_common_tokens_are_enough_for_wide_embeddings() -> None:
    """Fewer common tokens than dimensions: the mapping takes each of them to its counterpart."""
    random = torch.Generator().manual_seed(0)
    x, z = (torch.randn(20, width, generator=random, dtype=torch.float64) for width in (30, 50))
    ways = alignment([(x, z)])
    assert ways[0].shape == (30, 20)
    assert ways[1].shape == (50, 20)
    cosines = torch.nn.functional.normalize(x @ ways[0]) @ torch.nn.functional.normalize(z @ ways[1]).T
    assert cosines.argmax(dim=1).tolist() == list(range(20))


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


@pytest.mark.parametrize("name", [*METHODS, "deepen"])
def test_a_nan_logit_makes_its_row_nan(name: str) -> None:
    members = [member("bytes"), member("unigram", 1)]
    logits = logits_of(members, 2)
    logits[1][0, members[1].vocabulary.representatives[b"J"]] = math.nan
    step = rule(name, members).combine(logits)
    assert step.mean[0].isnan().any()
    assert not step.mean[1].isnan().any()


def test_a_mapping_is_made_once_and_again_where_the_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mapping, "default_cache_dir", lambda: tmp_path)
    made: list[int] = []

    def make() -> TokenMapping:
        made.append(1)
        return TokenMapping(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([1.0, 0.5]))

    first, again = load_or_make("key", make), load_or_make("key", make)
    assert again.share.tolist() == first.share.tolist()
    assert len(made) == 1
    load_or_make("another key", make)
    assert len(made) == 2
    for path in tmp_path.glob("mappings/*.safetensors"):
        path.write_bytes(b"damaged")
    load_or_make("key", make)
    assert len(made) == 3


def test_eva_saves_a_mapping_for_each_pair_of_embeddings(tmp_path: Path) -> None:
    for seed in (1, 2, 1):
        rule("eva", [member("bytes"), member("unigram", seed)])
    assert len([*tmp_path.rglob("*.safetensors")]) == 2


def test_a_model_without_output_embeddings_is_refused() -> None:
    headless = with_embeddings(member("unigram", 1), None)
    with pytest.raises(InputError, match=r"^method eva: it needs output embeddings, and unigram-1 has none"):
        rule("eva", [member("bytes"), headless])


# DeePEn


def softmax(values: Array) -> Array:
    exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def plain_matrix(one: Member, anchors: Sequence[bytes | None], given: deepen.Options) -> Array:
    """Eq. 2 and 4: a row for each candidate."""
    embedding = one.local.model.get_input_embeddings().weight.detach().numpy()
    own = candidates(one)
    cosines = unit(embedding[[*own.values()]]) @ unit(embedding[[own[token] for token in anchors]]).T
    return softmax(given.sharpness * cosines)


def plain_search(logits: Array, matrix: Array, mean: Array, given: deepen.Options) -> Array:
    """Eq. 7 on the logarithm of p, with steps that lower the loss of Eq. 6 only."""

    def loss(z: Array) -> float:
        r = softmax(z) @ matrix
        return float((mean * np.log(mean / r)).sum())

    z, eta = logits, given.learning_rate
    for _ in range(given.steps):
        r = softmax(z) @ matrix
        moved = z - eta * (matrix @ (-mean / r))
        if loss(moved) <= loss(z):
            z = moved
        else:
            eta /= 2
    return softmax(z)


def members_of_any_width(names: Sequence[str], seed: int) -> list[Member]:
    """Members with random embeddings, each with a width of its own."""
    random = np.random.default_rng(seed)
    members = [member(name) for name in names]
    shapes = [(one.vocabulary.size, random.integers(6, 24)) for one in members]
    return [
        with_embeddings(one, torch.tensor(random.normal(size=shape)))
        for one, shape in zip(members, shapes, strict=True)
    ]


ROWS = 8
DEEPEN: list[dict[str, Any]] = [{}, {"sharpness": 40.0, "learning_rate": 2.0}, {"steps": 3}, {"sharpness": 1.0}]


@pytest.mark.parametrize("name", ["deepen", "deepen-adapt"])
def test_a_step_of_deepen_equals_an_independent_computation(name: str) -> None:
    """32 random steps: four random ensembles, with other options each, and eight random rows each."""
    for seed, options in enumerate(DEEPEN):
        random = np.random.default_rng(seed)
        members = members_of_any_width(random.choice(NAMES, size=2 + seed % 2, replace=False), seed)
        given = deepen.Options(**options)
        scores = random.uniform(30, 90, size=len(members))
        if name == "deepen":
            weights = (scores / scores.sum()).tolist()
            made = rule(name, members, weights, **options)
        else:
            weights = ((scores - 20) / (scores - 20).sum()).tolist()
            made = rule(name, members, accuracies=scores.tolist(), chance=20, **options)
        own = (None, *members[0].vocabulary.representatives)
        anchors = [token for token in own if all(token in candidates(one) for one in members)]
        matrices = [plain_matrix(one, anchors, given) for one in members]
        logits = logits_of(members, ROWS, seed)
        step = made.combine([z.clone() for z in logits])
        for row in range(ROWS):
            chosen = [z[row].numpy()[[*candidates(one).values()]] for one, z in zip(members, logits, strict=True)]
            mean = sum(w * (softmax(z) @ r) for w, z, r in zip(weights, chosen, matrices, strict=True))  # Eq. 5
            p = plain_search(chosen[0], matrices[0], np.asarray(mean), given)
            got = dict(zip(step.ids[row].tolist(), step.mean[row].tolist(), strict=True))
            assert got == pytest.approx(dict(zip(candidates(members[0]).values(), p, strict=True)), abs=1e-9)


@pytest.mark.parametrize("cells", [1, 1000, 2**24])
def test_the_size_of_a_block_changes_nothing(cells: int) -> None:
    random = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(50, 8, generator=random, dtype=torch.float64))
    log_p = (5 * torch.randn(3, 50, generator=random, dtype=torch.float64)).log_softmax(dim=1)
    pull = torch.rand(3, 20, generator=random, dtype=torch.float64)
    matrix = (4 * vectors @ vectors[:20].T).softmax(dim=1)
    space = deepen.RelativeSpace(vectors, 20, 4.0, cells)
    moved, related = space.relate(log_p, (pull, torch.full((3, 1), -1.0, dtype=torch.float64)))
    expected = (log_p + pull @ matrix.T).log_softmax(dim=1)
    assert torch.allclose(moved, expected, atol=1e-12)
    assert torch.allclose(related, expected.exp() @ matrix, atol=1e-12)


def test_tokens_with_probability_0_keep_it() -> None:
    vectors = torch.eye(4, dtype=torch.float64)
    log_p = torch.tensor([[-math.inf, -math.inf, math.log(0.25), math.log(0.75)]], dtype=torch.float64)
    space = deepen.RelativeSpace(vectors, 2, 1.0, cells=2)
    moved, related = space.relate(log_p, (torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 1)))
    assert moved.exp().tolist() == [pytest.approx([0, 0, 0.25, 0.75])]
    assert related.tolist() == [pytest.approx([0.5, 0.5])]


def test_scoring_is_in_double_precision_and_gives_every_token_a_share() -> None:
    members = [member("bytes"), member("unigram", 1)]
    logits = [z.float() for z in logits_of(members, 1)]
    step = rule("deepen", members).combine(logits, also=torch.tensor([[1]]))
    assert step.mean.dtype == torch.float64
    assert (step.mean > 0).all()


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (None, "has none that can be read"),
        (torch.zeros(2048, 8, dtype=torch.int8), r"has quantised ones \(int8\)"),
        (torch.zeros(8, 8), "has 8 rows of them for "),
        (torch.zeros(2048, 8, device="meta"), "does not hold them in memory"),
    ],
)
def test_embeddings_that_cannot_be_read_are_refused(weight: object, message: str) -> None:
    with pytest.raises(InputError, match=f"^method deepen: it needs input embeddings, and unigram-1 {message}"):
        rule("deepen", [member("bytes"), with_embeddings(member("unigram", 1), weight)])
