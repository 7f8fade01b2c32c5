"""DeePEn: the blocks against a slow implementation of Eq. 2 to 7, and input errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_methods import member
from torch import Tensor

from ensemble import Ensemble
from ensemble.errors import InputError
from ensemble.methods import get_module, make_options
from ensemble.methods.deepen import Options, RelativeSpace, search
from ensemble.methods.deepen_adapt import adaptive_weights
from ensemble.models.member import Member
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import build

SHARPNESS, ETA, STEPS = 10.0, 0.15, 5


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


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


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def softmax(values: Sequence[float]) -> list[float]:
    exponentials = [math.exp(value - max(values)) for value in values]
    return [value / sum(exponentials) for value in exponentials]


def candidates(one: Member) -> dict[bytes | None, int]:
    """A member's tokens and their ids, EOS (None) being one."""
    return one.vocabulary.representatives | {None: one.vocabulary.eos_ids[0]}


def plain_deepen(members: Sequence[Member], logits: Sequence[Tensor], weights: Sequence[float]) -> dict[int, float]:
    """Eq. 2 to 7 for one step: the primary's ids and their probabilities."""
    tokens = [candidates(one) for one in members]
    anchors = [token for token in tokens[0] if all(token in other for other in tokens)]
    matrices, distributions = [], []
    for one, own, z in zip(members, tokens, logits, strict=True):
        embedding: Any = one.model.get_input_embeddings().weight
        rows = {token: embedding[index].tolist() for token, index in own.items()}
        relative = {t: [cosine(rows[t], rows[anchor]) for anchor in anchors] for t in own}  # Eq. 2
        matrices.append([softmax([SHARPNESS * c for c in relative[t]]) for t in own])  # Eq. 4
        distributions.append(softmax([float(z[index]) for index in own.values()]))
    related = [times(p, matrix) for p, matrix in zip(distributions, matrices, strict=True)]
    mean = [dot(weights, column) for column in zip(*related, strict=True)]  # Eq. 5
    p, eta = distributions[0], ETA
    for _ in range(STEPS):
        r = times(p, matrices[0])
        gradient = [-sum(row * m / own for row, m, own in zip(rows, mean, r, strict=True)) for rows in matrices[0]]
        moved = softmax([math.log(share) - eta * slope for share, slope in zip(p, gradient, strict=True)])  # Eq. 7
        if divergence(mean, times(moved, matrices[0])) <= divergence(mean, r):
            p = moved
        else:
            eta /= 2
    return dict(zip(tokens[0].values(), p, strict=True))


def divergence(mean: Sequence[float], r: Sequence[float]) -> float:
    """The loss of Eq. 6."""
    return sum(m * math.log(m / own) for m, own in zip(mean, r, strict=True))


def times(p: Sequence[float], matrix: Sequence[Sequence[float]]) -> list[float]:
    return [dot(p, column) for column in zip(*matrix, strict=True)]


@pytest.mark.parametrize("names", [("bytes", "unigram"), ("unigram with bytes", "bytes", "unigram")])
def test_a_step_follows_the_equations(names: tuple[str, ...]) -> None:
    members = [member(name, seed) for seed, name in enumerate(names)]
    weights = [0.7, 0.3] if len(names) == 2 else [0.5, 0.3, 0.2]
    logits = logits_of(members, 1)
    expected = plain_deepen(members, [z[0] for z in logits], weights)
    step = rule("deepen", members, weights).combine([z.clone() for z in logits])
    got = dict(zip(step.ids[0].tolist(), step.mean[0].tolist(), strict=True))
    assert got == pytest.approx(expected, abs=1e-8)
    assert got.keys() == expected.keys()


@pytest.mark.parametrize("cells", [1, 1000, 2**24])
def test_the_size_of_a_block_changes_nothing(cells: int) -> None:
    random = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(50, 8, generator=random, dtype=torch.float64))
    log_p = (5 * torch.randn(3, 50, generator=random, dtype=torch.float64)).log_softmax(dim=1)
    pull = torch.rand(3, 20, generator=random, dtype=torch.float64)
    matrix = (4 * vectors @ vectors[:20].T).softmax(dim=1)
    moved, related = RelativeSpace(vectors, 20, 4.0, cells).relate(log_p, pull)
    expected = (log_p + pull @ matrix.T).log_softmax(dim=1)
    assert torch.allclose(moved, expected, atol=1e-12)
    assert torch.allclose(related, expected.exp() @ matrix, atol=1e-12)


@pytest.mark.parametrize("sharpness", [1.0, 10.0, 20.0, 40.0])
@pytest.mark.parametrize("scale", [1.0, 3.0, 5.0, 20.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_is_never_higher_at_the_end_than_at_the_start(
    sharpness: float, scale: float, dtype: torch.dtype
) -> None:
    """320 random rows for each setting, 10,240 in all; a third of them with long steps."""
    random = torch.Generator().manual_seed(round(sharpness + 100 * scale))
    for eta in (0.15, 0.3, 5.0, 50.0):
        vectors = torch.nn.functional.normalize(torch.randn(60, 6, generator=random, dtype=dtype))
        space = RelativeSpace(vectors, 30, sharpness, cells=2**20)
        start = (scale * torch.randn(80, 60, generator=random, dtype=dtype)).log_softmax(dim=1)
        other = (scale * torch.randn(80, 60, generator=random, dtype=dtype)).log_softmax(dim=1)
        related = space.relate(start)[1]
        target = (related + space.relate(other)[1]) / 2
        found = search(space, start, related, target, Options(steps=5, learning_rate=eta))
        ends = [-(target.double() * space.relate(each)[1].double().log()).sum(dim=1) for each in (start, found)]
        assert bool((ends[1] <= ends[0] + 1e-6).all())
        assert found.exp().sum(dim=1).tolist() == pytest.approx([1] * 80, abs=1e-4)


def test_tokens_with_probability_0_keep_it() -> None:
    vectors = torch.eye(4, dtype=torch.float64)
    log_p = torch.tensor([[-math.inf, -math.inf, math.log(0.25), math.log(0.75)]], dtype=torch.float64)
    moved, related = RelativeSpace(vectors, 2, 1.0, cells=2).relate(log_p, torch.ones(1, 2, dtype=torch.float64))
    assert moved.exp().tolist() == [pytest.approx([0, 0, 0.25, 0.75])]
    assert related.tolist() == [pytest.approx([0.5, 0.5])]


def test_rows_do_not_see_each_other() -> None:
    members = [member("bytes"), member("unigram", 1)]
    made, logits = rule("deepen", members), logits_of(members, 3)
    together = made.combine([z.clone() for z in logits])
    for row in range(3):
        alone = made.combine([z[row : row + 1].clone() for z in logits])
        assert torch.allclose(alone.mean[0], together.mean[row], atol=1e-10)


def test_identical_members_give_the_members_own_distribution() -> None:
    members = [member("bytes")] * 3
    one = logits_of(members[:1], 2)[0]
    step = rule("deepen", members).combine([one.clone() for _ in members])
    assert torch.allclose(step.mean, step.members[0], atol=1e-12)
    assert torch.allclose(step.members.sum(dim=2), torch.ones(3, 2, dtype=torch.float64))


def test_the_primary_moves_to_a_token_that_another_member_wants() -> None:
    members = [member("bytes"), member("unigram", 1)]
    wanted = [one.vocabulary.representatives[b"J"] for one in members]
    logits = [torch.zeros(1, one.vocabulary.size, dtype=torch.float64) for one in members]
    logits[1][0, wanted[1]] = 20
    step = rule("deepen", members).combine(logits)
    assert int(step.ids[0, step.mean[0].argmax()]) == wanted[0]


def test_a_nan_logit_makes_its_row_nan() -> None:
    members = [member("bytes"), member("unigram", 1)]
    logits = logits_of(members, 2)
    logits[1][0, members[1].vocabulary.representatives[b"J"]] = math.nan
    step = rule("deepen", members).combine(logits)
    assert step.mean[0].isnan().any()
    assert not step.mean[1].isnan().any()


def test_scoring_is_in_double_precision_and_gives_every_token_a_share() -> None:
    members = [member("bytes"), member("unigram", 1)]
    logits = [z.float() for z in logits_of(members, 1)]
    step = rule("deepen", members).combine(logits, also=torch.tensor([[1]]))
    assert step.mean.dtype == torch.float64
    assert (step.mean > 0).all()


def test_adapt_weighs_by_the_accuracy_above_chance() -> None:
    assert adaptive_weights([75, 50, 20], chance=25) == pytest.approx([2 / 3, 1 / 3, 0])
    members = [member("bytes"), member("unigram", 1)]
    logits = logits_of(members, 1)
    adapted = rule("deepen-adapt", members, accuracies=[60, 20]).combine([z.clone() for z in logits])
    weighted = rule("deepen", members, [0.75, 0.25]).combine([z.clone() for z in logits])
    assert torch.equal(adapted.mean, weighted.mean)


def test_a_whole_generation_of_copies_is_the_members_own(tables: Path) -> None:
    own = member("bytes")
    alone = Ensemble([own], cache_dir=tables).generate(["The cat"], max_new_tokens=12)
    copies = Ensemble([own, own], method="deepen", cache_dir=tables).generate(["The cat"], max_new_tokens=12)
    assert copies[0].tokens == alone[0].tokens


def with_embedding(one: Member, weight: object) -> Member:
    """A member whose model has this weight as its input embeddings."""

    class Layer:
        pass

    class Model:
        device = one.device

        def get_input_embeddings(self) -> Layer:
            layer = Layer()
            layer.weight = weight  # type: ignore[attr-defined]
            return layer

    return replace(one.local, model=Model())  # type: ignore[arg-type]


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
        rule("deepen", [member("bytes"), with_embedding(member("unigram", 1), weight)])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("deepen", {"steps": -1}, "steps is -1"),
        ("deepen", {"learning_rate": 0.0}, "learning_rate is 0.0"),
        ("deepen-adapt", {"sharpness": math.inf}, "sharpness is inf"),
        ("deepen-adapt", {}, "method deepen-adapt: it needs accuracies, one for each of 2 models, and has 0"),
        ("deepen-adapt", {"accuracies": [30, 25], "chance": 30}, "method deepen-adapt: no accuracy"),
        ("deepen-adapt", {"accuracies": [30, 250]}, "accuracies "),
        ("deepen-adapt", {"accuracies": [3, 2], "weights": [1, 2]}, "method deepen-adapt: its weights follow"),
    ],
)
def test_options_and_weights_that_cannot_be_used_are_refused(
    name: str, options: dict[str, Any], message: str, tables: Path
) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        Ensemble([member("bytes"), member("unigram", 1)], method=name, cache_dir=tables, **options)
