"""DeePEn: the blocks against a slow implementation of Eq. 2 to 7, and input errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from test_methods_mapped import Array, candidates, logits_of, rule, unit, with_embeddings
from tiny import member
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods.deepen import Options, RelativeSpace
from ensemble.models.member import Member


def softmax(values: Array) -> Array:
    exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def plain_matrix(one: Member, anchors: Sequence[bytes | None], given: Options) -> Array:
    """Eq. 2 and 4: a row for each candidate."""
    embedding = one.local.model.get_input_embeddings().weight.detach().numpy()
    own = candidates(one)
    cosines = unit(embedding[[*own.values()]]) @ unit(embedding[[own[token] for token in anchors]]).T
    rows = unit(cosines) if given.unit_rows else cosines
    return softmax(given.sharpness * rows) if given.relative_norm else rows


def plain_mirror(logits: Array, matrix: Array, mean: Array, given: Options) -> Array:
    """Eq. 7 on the logarithm of p, with steps that lower the loss of Eq. 6 only."""
    largest = (matrix**2).sum(axis=1).max()

    def loss(z: Array) -> float:
        r = softmax(z) @ matrix
        return float((mean * np.log(mean / r)).sum() if given.relative_norm else ((r - mean) ** 2).sum() / 2 / largest)

    z, eta = logits, given.learning_rate
    for _ in range(given.steps):
        r = softmax(z) @ matrix
        moved = z - eta * (matrix @ (-mean / r if given.relative_norm else (r - mean) / largest))
        if loss(moved) <= loss(z):
            z = moved
        else:
            eta /= 2
    return softmax(z)


def plain_adamw(logits: Array, matrix: Array, mean: Array, given: Options) -> Array:
    """The authors' search, by torch's own optimiser, schedule and loss; of its points the best."""
    z = torch.tensor(logits, requires_grad=True)
    rows, target = torch.tensor(matrix), torch.tensor(mean)
    largest = float((matrix**2).sum(axis=1).max())

    def loss() -> Tensor:
        r = z.softmax(dim=0) @ rows
        if not given.relative_norm:
            return (r - target).square().mean() / 2 / largest
        return torch.nn.functional.kl_div(r.log(), target, reduction="none").mean()  # the default of the authors' time

    optimiser = torch.optim.AdamW([z], lr=given.learning_rate, betas=(0.9, 0.999), foreach=False)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=10, eta_min=given.learning_rate / 4)
    points = []
    for _ in range(given.steps):
        value = loss()
        points.append((value.item(), z.detach().clone()))
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    points.append((loss().item(), z.detach()))
    return np.asarray(min(points, key=lambda point: point[0])[1].softmax(dim=0))


def random_members(names: Sequence[str], seed: int) -> list[Member]:
    """Members with random embeddings, each with a width of its own."""
    random = np.random.default_rng(seed)
    members = [member(name) for name in names]
    shapes = [(one.vocabulary.size, random.integers(6, 24)) for one in members]
    return [
        with_embeddings(one, torch.tensor(random.normal(size=shape)))
        for one, shape in zip(members, shapes, strict=True)
    ]


ROWS = 8
NAMES = ("bytes", "unigram", "unigram with bytes")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"sharpness": 40.0, "learning_rate": 2.0},
    {"unit_rows": True, "sharpness": 30.0, "steps": 3},
    {"anchors": 16, "anchor_seed": 3},
    {"relative_norm": False},
    {"relative_norm": False, "unit_rows": True, "anchors": 20},
    {"optimiser": "adamw"},
    {"optimiser": "adamw", "unit_rows": True, "sharpness": 100.0},
    {"optimiser": "adamw", "learning_rate": 0.3, "steps": 12, "anchors": 30},
    {"optimiser": "adamw", "relative_norm": False},
]


@pytest.mark.parametrize("name", ["deepen", "deepen-adapt"])
def test_a_step_equals_an_independent_computation(name: str) -> None:
    """80 random steps: ten random ensembles, with other options each, and eight random rows each."""
    for seed, options in enumerate(OPTIONS):
        random = np.random.default_rng(seed)
        members = random_members(random.choice(NAMES, size=2 + seed % 2, replace=False), seed)
        given = Options(**options)
        scores = random.uniform(30, 90, size=len(members))
        if name == "deepen":
            weights = (scores / scores.sum()).tolist()
            made = rule(name, members, weights, **options)
        else:
            weights = ((scores - 20) / (scores - 20).sum()).tolist()
            made = rule(name, members, accuracies=scores.tolist(), chance=20, **options)
        common = [t for t in (None, *members[0].vocabulary.representatives) if all(t in candidates(m) for m in members)]
        draw = torch.randperm(len(common), generator=torch.Generator().manual_seed(given.anchor_seed))
        anchors = [common[n] for n in draw[: given.anchors or None]]
        matrices = [plain_matrix(one, anchors, given) for one in members]
        logits = logits_of(members, ROWS, seed)
        step = made.combine([z.clone() for z in logits])
        for row in range(ROWS):
            own = [z[row].numpy()[[*candidates(one).values()]] for one, z in zip(members, logits, strict=True)]
            mean = sum(w * (softmax(z) @ r) for w, z, r in zip(weights, own, matrices, strict=True))  # Eq. 5
            plain = plain_adamw if given.optimiser == "adamw" else plain_mirror
            p = plain(own[0], matrices[0], np.asarray(mean), given)
            got = dict(zip(step.ids[row].tolist(), step.mean[row].tolist(), strict=True))
            assert got == pytest.approx(dict(zip(candidates(members[0]).values(), p, strict=True)), abs=1e-9)


@pytest.mark.parametrize("cells", [1, 1000, 2**24])
def test_the_size_of_a_block_changes_nothing(cells: int) -> None:
    random = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(50, 8, generator=random, dtype=torch.float64))
    log_p = (5 * torch.randn(3, 50, generator=random, dtype=torch.float64)).log_softmax(dim=1)
    pull = torch.rand(3, 20, generator=random, dtype=torch.float64)
    matrix = (4 * vectors @ vectors[:20].T).softmax(dim=1)
    space = RelativeSpace(vectors, 20, Options(sharpness=4.0), cells)
    moved, related = space.relate(log_p, pull, lambda before, gain, _: before + gain)
    expected = (log_p + pull @ matrix.T).log_softmax(dim=1)
    assert torch.allclose(moved, expected, atol=1e-12)
    assert torch.allclose(related, expected.exp() @ matrix, atol=1e-12)


def test_tokens_with_probability_0_keep_it() -> None:
    vectors = torch.eye(4, dtype=torch.float64)
    log_p = torch.tensor([[-math.inf, -math.inf, math.log(0.25), math.log(0.75)]], dtype=torch.float64)
    space = RelativeSpace(vectors, 2, Options(sharpness=1.0), cells=2)
    moved, related = space.relate(log_p, torch.ones(1, 2, dtype=torch.float64), lambda before, gain, _: before + gain)
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
