"""The token-level methods other than UNITE, against slow implementations of their equations.

``slow`` decodes with the reference's members, which know no cache, no batch and no table: at each step a rule in plain
Python decides, from dictionaries of probabilities. Models are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from reference import EOS, Entry, ReferenceMember
from test_unite_step import Case, batch_of, cases, plain_probabilities, scores
from tiny import PROMPTS, byte_tokenizer, member, passes_of, writer_of
from ways import until_error

from ensemble import Ensemble, Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.methods import gac
from ensemble.models.member import Member
from ensemble.step import distribution as mixing
from ensemble.vocabulary.joint import NONE

quick = settings(max_examples=25, deadline=None, derandomize=True)
SCRIPT = "The cat sat on the mat. James and Anna went. 今天天气很好 12 apples.\n"


@cache
def writer(strength: float) -> Member:
    """A member that writes `SCRIPT` byte by byte, with varying certainty."""
    return writer_of(byte_tokenizer(), SCRIPT, strength=strength)


MEMBERS: dict[str, Callable[[], list[Member]]] = {
    "different": lambda: [member("bytes"), member("unigram with bytes", 1)],
    "three": lambda: [member("unigram with bytes"), member("bytes", 1), member("unigram", 2)],
    "one vocabulary": lambda: [member("bytes"), member("bytes", 1), member("bytes", 2)],
    "a sure primary": lambda: [writer(6.0), member("unigram with bytes", 1)],
}


def judges_of(members: Sequence[Member]) -> list[ReferenceMember]:
    return [ReferenceMember(m.model, m.tokenizer) for m in members]


# Slow readings of whole steps


def slow_gac(case: Case, row: int) -> dict[int, float]:
    """Eq. 3, entry by entry."""
    mean = dict.fromkeys(range(case.joint.size), 0.0)
    for member_, weight in enumerate(case.weights.tolist()):
        z = scores(case, member_, row)
        total = sum(math.exp(value) for value in z.values())
        for token, value in z.items():
            mean[int(case.joint.members[member_].entry_of[token])] += weight * math.exp(value) / total
    return mean


@quick
@given(cases())
def test_gac_is_equation_3(case: Case) -> None:
    step = gac.over_all(case.joint, case.weights.tolist())([z.clone() for z in case.logits])
    for row in batch_of(case):
        assert dict(enumerate(step.mean[row].tolist())) == pytest.approx(slow_gac(case, row), abs=1e-12)


@quick
@given(cases())
def test_tokens_that_the_primary_lacks_are_spelled_or_left_out(case: Case) -> None:
    (first, *_) = case.joint.members
    ids = gac.over_all(case.joint, case.weights.tolist())([z.clone() for z in case.logits]).ids[0].tolist()
    own = {entry: token for token, entry in enumerate(first.entry_of.tolist()) if entry != NONE}
    anyones = {entry for side in case.joint.members for entry in side.entry_of.tolist()}
    for entry, token in enumerate(ids):
        can_spell = entry in anyones and int(first.id_of[entry]) != NONE
        assert token == own.get(entry, len(first.entry_of) + entry if can_spell else NONE)


@quick
@given(cases())
def test_the_geometric_mean_is_the_product_of_powers(case: Case) -> None:
    step = mixing.geometric(case.run(), case.weights)
    for row in batch_of(case):
        own = [plain_probabilities(case, m, row) for m in range(len(case.logits))]
        powers = {w: math.prod(p[w] ** a for p, a in zip(own, case.weights.tolist(), strict=True)) for w in own[0]}
        if total := sum(powers.values()):
            assert found(step.entries[row], step.present[row], step.mean[row]) == pytest.approx(
                {w: value / total for w, value in powers.items()}, abs=1e-12
            )


def found(entries: torch.Tensor, present: torch.Tensor, mean: torch.Tensor) -> dict[int, float]:
    rows = zip(entries.tolist(), present.tolist(), mean.tolist(), strict=True)
    return {entry: p for entry, there, p in rows if there}


# Slow decoding

Rule = Callable[[Sequence[ReferenceMember], Sequence[torch.Tensor], bytes], tuple[Entry, bool]]
"""Which entry wins, and whether it may be spelled with several ids."""


def slow(members: Sequence[Member], prompt: str, rule: Rule, limit: int) -> tuple[list[int], str]:
    """The primary's ids and the text."""
    judges = judges_of(members)
    prompts = [judge.prompt(prompt) for judge in judges]
    tokens: list[int] = []
    text = b""
    while len(tokens) < limit:
        read = [tokens, *(judge.continuation(text) for judge in judges[1:])]
        z = [judge.z([*p, *ids]) for judge, p, ids in zip(judges, prompts, read, strict=True)]
        entry, spells = rule(judges, z, text)
        if isinstance(entry, str):
            break
        if spells and entry not in judges[0].candidates:
            ids, data = judges[0].continuation(entry), entry
        else:
            ids = [judges[0].id_of(entry)]
            data = judges[0].token_bytes(ids[0])
        if len(ids) > limit - len(tokens):
            ids = ids[: limit - len(tokens)]
            data = b"".join(map(judges[0].token_bytes, ids))
        tokens += ids
        text += data
    return tokens, text.decode(errors="replace")


def whole(judge: ReferenceMember, z: torch.Tensor) -> dict[Entry, float]:
    """A member's probabilities of its own tokens."""
    p = z.softmax(0).tolist()
    own = {entry: p[token] for entry, token in judge.candidates.items()}
    return own | ({EOS: p[judge.eos_id]} if judge.eos_id is not None else {})


def rule_of_gac(judges: Sequence[ReferenceMember], z: Sequence[torch.Tensor], _text: bytes) -> tuple[Entry, bool]:
    mean: dict[Entry, float] = {}
    for judge, own in zip(judges, z, strict=True):
        for entry, p in whole(judge, own).items():
            mean[entry] = mean.get(entry, 0) + p / len(judges)
    return max((e for e in mean if judges[0].id_of(e) is not None), key=lambda e: mean[e]), True


def rule_with_threshold(threshold: float) -> Rule:
    """Eq. 5."""

    def rule(judges: Sequence[ReferenceMember], z: Sequence[torch.Tensor], text: bytes) -> tuple[Entry, bool]:
        own = whole(judges[0], z[0])
        best = max(own, key=lambda e: own[e])
        return rule_of_gac(judges, z, text) if own[best] <= threshold else (best, True)

    return rule


def rule_of_safe(
    judges: Sequence[ReferenceMember], z: Sequence[torch.Tensor], text: bytes, geometric: bool = False
) -> tuple[Entry, bool]:
    union = {entry for judge, own in zip(judges, z, strict=True) for entry in judge.top(own, 10)}
    shares: list[dict[Entry, float]] = []
    for judge, own in zip(judges, z, strict=True):
        ids = {entry: judge.id_of(entry) for entry in union}
        powers = {entry: 0.0 if token is None else math.exp(own[token]) for entry, token in ids.items()}
        shares.append({entry: power / sum(powers.values()) for entry, power in powers.items()})
    mean = {entry: sum(p[entry] for p in shares) / len(shares) for entry in union}
    if geometric:
        mean = {entry: math.prod(p[entry] for p in shares) ** (1 / len(shares)) for entry in union}
        mean = {entry: each / sum(mean.values()) for entry, each in mean.items()}
    favourite = max(union, key=lambda e: shares[0][e])
    agreed = mean[favourite] > 0.5 or all(p[favourite] == max(p.values()) for p in shares)
    after = text if isinstance(favourite, str) else text + judges[0].token_bytes(judges[0].id_of(favourite) or 0)
    border = all(j.continuation(after)[: len(j.continuation(text))] == j.continuation(text) for j in judges[1:])
    if agreed or not border:
        return favourite, False
    if max(mean.values()) < 0.5 and not geometric:
        takers = [t for t in union if t in judges[0].candidates and mean[t] > 0.1]
        begun = {e: [t for t in takers if isinstance(e, bytes) and e.startswith(t)] for e in union}  # type: ignore[arg-type]
        moved = dict.fromkeys(union, 0.0)
        for entry, share in mean.items():
            moved[min(begun[entry], key=len) if begun[entry] else entry] += share
        mean = moved
    return max((e for e in union if judges[0].id_of(e) is not None), key=lambda e: mean[e]), False


def outcome(made: Generation) -> tuple[list[int], str]:
    return list(made.tokens), made.text


RULES: dict[str, tuple[Rule, dict[str, object]]] = {
    "gac": (rule_of_gac, {"method": "gac"}),
    "gac-threshold": (rule_with_threshold(0.5), {"method": "gac-threshold"}),
    "safe": (rule_of_safe, {"method": "safe"}),
    "safe, geometric": (partial(rule_of_safe, geometric=True), {"method": "safe", "mean": "geometric"}),
}


@pytest.mark.parametrize("kind", MEMBERS)
@pytest.mark.parametrize("name", RULES)
def test_the_text_is_that_of_the_slow_implementation(name: str, kind: str, tables: Path) -> None:
    rule, options = RULES[name]
    members = MEMBERS[kind]()
    ensemble = Ensemble(members, cache_dir=tables, **options)  # type: ignore[arg-type]  # a table of keyword arguments
    prompts = PROMPTS[:2]
    expected = [slow(members, prompt, rule, 10) for prompt in prompts]
    assert [outcome(g) for g in ensemble.generate(prompts, max_new_tokens=10, batch_size=2)] == expected
    assert [outcome(ensemble.generate([p], max_new_tokens=10)[0]) for p in prompts] == expected


@pytest.mark.parametrize("kind", MEMBERS)
def test_threshold_1_is_gac_and_0_is_the_primary_alone(kind: str, tables: Path) -> None:
    members = MEMBERS[kind]()
    made = {
        name: Ensemble(some, cache_dir=tables, **options).generate(PROMPTS, max_new_tokens=10, batch_size=3)
        for name, some, options in (
            ("always", members, {"method": "gac-threshold", "threshold": 1}),
            ("gac", members, {"method": "gac"}),
            ("never", members, {"method": "gac-threshold", "threshold": 0}),
            ("alone", members[:1], {"method": "gac"}),
        )
    }
    assert made["always"] == made["gac"]
    assert made["never"] == made["alone"]
    assert {g.counts.ensembled_steps for g in made["never"]} == {0}


@pytest.mark.parametrize("threshold", [0, 0.5, 1])
def test_waiting_members_run_only_when_needed(threshold: float, tables: Path) -> None:
    primary, other = MEMBERS["a sure primary"]()
    ensemble = Ensemble([primary, other], cache_dir=tables, method="gac-threshold", threshold=threshold)
    with passes_of(other.model) as passes:
        made = [ensemble.generate([prompt], max_new_tokens=20)[0] for prompt in PROMPTS]
    steps, combined = sum(g.counts.steps for g in made), sum(g.counts.ensembled_steps for g in made)
    assert len(passes) == combined
    assert {0: combined == 0, 0.5: 0 < combined < steps, 1: combined == steps}[threshold]


def test_a_member_that_waits_reads_only_the_texts_that_need_it(tables: Path) -> None:
    primary, other = MEMBERS["a sure primary"]()
    ensemble = Ensemble([primary, other], cache_dir=tables, method="gac-threshold")
    with passes_of(other.model) as passes:
        made = ensemble.generate(PROMPTS, max_new_tokens=10, batch_size=len(PROMPTS))
    needed = sum(g.counts.ensembled_steps > 0 for g in made)
    assert max(rows for rows, _ in passes) <= needed < len(PROMPTS)
    assert made == [ensemble.generate([prompt], max_new_tokens=10)[0] for prompt in PROMPTS]


def test_a_member_that_fails_while_others_wait_is_named_and_stops_no_other_text(tables: Path) -> None:
    primary, other = MEMBERS["a sure primary"]()
    ensemble = Ensemble([primary, other], cache_dir=tables, method="gac-threshold")
    made = ensemble.generate(PROMPTS, max_new_tokens=10, batch_size=len(PROMPTS))
    alone = {n: g for n, g in enumerate(made) if not g.counts.ensembled_steps}

    def spoil(_: object, __: object, output: Any) -> None:
        output.logits.fill_(math.nan)

    hook = other.model.register_forward_hook(spoil)
    prompts = [ensemble.encode(prompt) for prompt in PROMPTS]
    message = rf"{other.name}: its logits are not numbers \(NaN\) at step \d"
    found = until_error(ensemble.generate_each(prompts, Settings(10), Batch(len(PROMPTS))), message)
    hook.remove()
    assert found == alone != {}


def test_a_member_that_waited_reads_missed_tokens_once(tables: Path) -> None:
    ensemble = Ensemble(MEMBERS["a sure primary"](), cache_dir=tables, method="gac-threshold")
    (made,) = ensemble.generate([PROMPTS[0]], max_new_tokens=40)
    assert made.counts.ensembled_steps < made.counts.steps
    # The last ids of a text may be read again when it goes on.
    assert made.counts.fed[1] <= len(made.tokens) + 3 * made.counts.ensembled_steps


def test_a_gate_is_open_at_some_steps_and_closed_at_others(tables: Path) -> None:
    made = Ensemble(MEMBERS["a sure primary"](), cache_dir=tables, method="safe").generate(PROMPTS, max_new_tokens=20)
    assert 0 < sum(g.counts.ensembled_steps for g in made) < sum(g.counts.steps for g in made)


def test_gac_writes_tokens_that_the_primary_lacks(tables: Path) -> None:
    ensemble = Ensemble(MEMBERS["different"](), cache_dir=tables, method="gac")
    made = ensemble.generate(PROMPTS, max_new_tokens=12, trace=True)
    steps = [step for g in made for step in g.trace]
    assert any(step.candidates[step.chosen].token is None for step in steps)
    for g in made:
        ended = [step.data for step in g.trace if step.data is not None]
        assert len(g.tokens) <= 12
        assert g.text in b"".join(ended).decode(errors="replace")


def test_a_trace_over_whole_vocabularies_holds_the_likeliest(tables: Path) -> None:
    made = Ensemble(MEMBERS["three"](), cache_dir=tables, method="gac").generate(
        PROMPTS[:2], max_new_tokens=4, trace=True
    )
    for step in made[0].trace + made[1].trace:
        assert 20 <= len(step.candidates) <= 21
        assert [c.mean for c in step.candidates] == sorted((c.mean for c in step.candidates), reverse=True)
        assert all(0 in c.wanted_by for c in sorted(step.candidates, key=lambda c: -c.probabilities[0])[:1])


@pytest.mark.parametrize("method", ["gac", "gac-threshold"])
def test_a_score_is_the_sum_of_equation_3(method: str, tables: Path) -> None:
    members = MEMBERS["different"]()
    judges = judges_of(members)
    prompts = [judge.prompt(PROMPTS[0]) for judge in judges]
    expected, text, tokens = 0.0, b"", judges[0].continuation(b" the cat")
    for n, token in enumerate(tokens):
        read = [tokens[:n], *(judge.continuation(text) for judge in judges[1:])]
        z = [judge.z([*p, *ids]) for judge, p, ids in zip(judges, prompts, read, strict=True)]
        entry = judges[0].token_bytes(token)
        expected += math.log(sum(whole(j, own).get(entry, 0) for j, own in zip(judges, z, strict=True)) / len(judges))
        text += entry
    assert Ensemble(members, cache_dir=tables, method=method).score(PROMPTS[0], [" the cat"]) == pytest.approx(
        [expected]
    )
