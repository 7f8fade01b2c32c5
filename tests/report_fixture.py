"""A run folder such as `advisor select` writes, made up: six candidates, 300 dev and 100 held-out sums, seeded."""

from __future__ import annotations

import json
import math
import random
import re
from itertools import permutations
from pathlib import Path
from typing import Any

from advisor.judge.prompts import Grade, Match
from advisor.judge.summary import head_to_head, summarize_grades, summarize_matches
from advisor.run.figures import JudgedSplit
from advisor.strategies.schema import strategy_of
from ensemble.common.schema import written

TERSE = {"terse-bytes": 0.79, "terse-pieces": 0.755, "terse-unigram": 0.735}
CANDIDATES = {**TERSE, "steps-bytes": 0.78, "weak-bytes": 0.30}
BROKEN = "broken-pieces"
TRACED = 5
"""Held-out questions whose ensemble response has a trace."""
RULES = {"max_gap": 10.0, "max_length_ratio": 2.0, "max_models": 3}


def write_run(folder: Path, *, dev: int = 300, held_out: int = 100, seed: int = 5) -> Path:
    """Write result.json and samples.jsonl into a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = make_samples(dev, held_out, seed)
    write_json(folder, make_result(samples))
    lines = (json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
    (folder / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def write_json(folder: Path, result: dict[str, Any]) -> Path:
    """Write a result.json alone, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
    return folder


def write_evaluation(folder: Path, evaluation: dict[str, Any]) -> Path:
    """Write an evaluation.json beside a result.json, and return the folder."""
    (folder / "evaluation.json").write_text(json.dumps(evaluation, indent=2), encoding="utf-8")
    return folder


def make_evaluation(result: dict[str, Any]) -> dict[str, Any]:
    """Make evaluation.json of the set of a result.json: two methods, one that was left out, and the control."""
    run = result["ensemble"]
    members = [
        {key: member[key] for key in ("model", "accuracy", "accuracy_ci", "mean_length", "peak_memory")}
        | {"ms_per_token": 0.5 + place, "seconds_per_question": 0.1}
        for place, member in enumerate(run["members"])
    ]
    figures = {key: run[key] for key in ("accuracy", "accuracy_ci", "gained", "lost")}
    figures |= {key: run[key] for key in ("difference", "difference_ci", "p_two_sided")}
    left_out = {**dict.fromkeys(figures), "left_out": "method average: it needs one vocabulary"}
    methods = [
        _entry("unite", "token", **figures, p_adjusted=0.0312, handled_per_step=23.7),
        _entry("gac-threshold", "token", **figures, p_adjusted=0.5, share_ensembled=0.073, handled_per_step=2400.2),
        _entry("average", "token", **left_out, ms_per_token=None, share_ensembled=None, peak_memory=None),
        _entry("voting", "response", **figures, p_adjusted=0.75, ms_per_token=1234.5, share_ensembled=None),
        _entry("self-consistency", "control", **figures, share_ensembled=None),
    ]
    return {
        "schema_version": 2,
        "task": "word_problems",
        "metric": "number",
        "split": "held_out",
        "n": run["n"],
        "signature": "task:word_problems|split:held_out|n:100|shots:0|seed:0|prompt:9f2c1ab0|version:0.1.0",
        "k": 10,
        "best_single_model": run["best_single_model"],
        "members": members,
        "methods": methods,
        "provenance": {"command": "advisor evaluate runs/demo --task word_problems --methods unite,voting"},
    }


def _entry(method: str, level: str, **figures: Any) -> dict[str, Any]:
    usual = {
        "left_out": None,
        "p_adjusted": None,
        "ms_per_token": 2.04,
        "seconds_per_question": 0.1,
        "share_ensembled": 1.0,
    }
    return {"method": method, "level": level, **usual, "handled_per_step": None, "peak_memory": 701_000_000, **figures}


def make_samples(dev: int = 300, held_out: int = 100, seed: int = 5) -> list[dict[str, Any]]:
    """Make the lines of samples.jsonl."""
    chance = random.Random(seed)
    plan = [("dev", index) for index in range(dev)] + [("held_out", index) for index in range(held_out)]
    return [_sample(chance, split, index) for split, index in plan]


def make_result(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make result.json from the samples."""
    dev = [sample for sample in samples if sample["split"] == "dev"]
    held_out = [sample for sample in samples if sample["split"] == "held_out"]
    standing = [_standing(model, dev) for model in CANDIDATES]
    standing.sort(key=lambda each: (-each["accuracy"], each["mean_length"], each["model"]))
    selected = _decide(standing)
    strategies = make_strategies(selected, held_out)
    return {
        "schema_version": 2,
        "task": {
            "name": "word_problems",
            "metric": "number",
            "split": "dev",
            "n": len(dev),
            "fingerprint": "sha256:5b1f0c3ad2e4",
            "signature": "task:word_problems|split:dev|n:300|shots:0|seed:0|prompt:9f2c1ab0|version:0.1.0",
        },
        "rules": RULES,
        "candidates": [*standing, _failed()],
        "selected": selected,
        "pairs": _pairs(standing, dev),
        "ensemble": _ensemble(selected, held_out) if held_out else None,
        "strategies": strategies,
        "prediction": _prediction(selected) if held_out else None,
        "looks": _looks(selected, len(held_out)),
        "advice": {
            "questions_needed": None,
            "warnings": [],
            "confidence": 0.9,
            **_advice(selected, held_out),
            "recommendation": recommend(strategies),
        },
        "provenance": _provenance(),
    }


def _sample(chance: random.Random, split: str, index: int) -> dict[str, Any]:
    start, more, less = chance.randint(12, 40), chance.randint(3, 30), chance.randint(2, 11)
    answer = start + more - less
    person, other = chance.sample(["Mia", "Tom", "Zoe", "Leo", "Ida", "Ben"], 2)
    things = chance.choice(["shells", "coins", "stamps", "beads"])
    prompt = (
        f"Question: {person} has {start} {things}. {person} finds {more} more. {person} gives {less} to {other}. "
        f"How many {things} does {person} have now?\nAnswer:"
    )
    hard = chance.gauss(0, 0.16)
    models = CANDIDATES if split == "dev" else TERSE
    responses, rights = {}, 0
    for model, skill in models.items():
        right = chance.random() < skill - hard
        rights += right
        said = answer if right else answer + chance.choice([-10, -1, 1, 2, 10])
        responses[model] = _response(_text(model, start, more, less, said, chance), answer)
    ensemble = None
    if split == "held_out":
        right = chance.random() < {0: 0.06, 1: 0.6, 2: 0.98, 3: 1.0}[rights]
        ensemble = _response(f"The answer is {answer if right else answer - 1}.", answer)
        ensemble["trace"] = make_trace(ensemble["text"], random.Random(index)) if index < TRACED else None
    return {
        "id": f"{split}-{index}",
        "prompt": prompt,
        "reference": str(answer),
        "split": split,
        "responses": responses,
        "ensemble": ensemble,
    }


def make_trace(text: str, chance: random.Random) -> dict[str, Any]:
    """Make a trace of a response: a step a word, on which the members agree more or less."""
    members = list(TERSE)
    words = re.findall(r"^\S+| \S+", text)
    return {"members": members, "steps": [make_step(word, chance) for word in [*words, None]], "left_out": 0}


def make_step(text: str | None, chance: random.Random) -> dict[str, Any]:
    """Make a step that emits a text: four candidates, and a first choice for each member."""
    shares = [sorted((chance.random() ** 3 for _ in range(4)), reverse=True) for _ in TERSE]
    shares = [[share / sum(own) for share in own] for own in shares]
    for own in shares:
        if chance.random() < 0.3:
            own[0], own[1] = own[1], own[0]
    others = [" so", " is\n", ""]
    return {
        "text": text,
        "won_by": [member for member, own in enumerate(shares) if own[0] == max(own)],
        "disagreement": round(chance.random() ** 2, 4),
        "union": 17,
        "chosen": 0,
        "candidates": [
            {
                "text": candidate,
                "probabilities": [round(own[place], 4) for own in shares],
                "mean": round(sum(own[place] for own in shares) / len(shares), 4),
                "wanted_by": [member for member in range(len(shares)) if place < 3 or member == 1],
            }
            for place, candidate in enumerate([text, *others])
        ],
    }


def _text(model: str, start: int, more: int, less: int, said: int, chance: random.Random) -> str:
    if model == "steps-bytes":
        text = f"{start} + {more} = {start + more}. {start + more} - {less} = {said}. The answer is {said}."
        return text[:38] if chance.random() < 0.04 else text
    if model == "weak-bytes" and chance.random() < 0.2:
        return "The answer is the answer is the answer is"
    return f"The answer is {said}." if model != "terse-unigram" else f"So the answer is {said}."


def _response(text: str, answer: int) -> dict[str, Any]:
    digits = text.rstrip(".").rsplit(" ", 1)[-1]
    extracted = digits if digits.isdigit() and text.endswith(".") else None
    return {
        "text": text,
        "extracted": extracted,
        "score": float(extracted == str(answer)),
        "length": len(text),
        "finish_reason": "eos" if text.endswith(".") else "length",
        "error": None,
    }


def wilson(right: float, n: int) -> list[float]:
    """Return the 95% Wilson interval of a share, in points."""
    share, z = right / n, 1.96
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return [round(100 * (middle - half) / (1 + z * z / n), 2), round(100 * (middle + half) / (1 + z * z / n), 2)]


def _standing(model: str, samples: list[dict[str, Any]]) -> dict[str, Any]:
    responses = [sample["responses"][model] for sample in samples]
    right = sum(response["score"] for response in responses)
    return {
        "model": model,
        "accuracy": round(100 * right / len(responses), 2),
        "accuracy_ci": wilson(right, len(responses)),
        "mean_length": round(sum(response["length"] for response in responses) / len(responses), 2),
        "truncated": sum(response["finish_reason"] == "length" for response in responses),
        "errors": 0,
        "status": "rejected",
        "reason": "",
        "close_call": None,
        "tokens_per_second": 1834.2 if model != "steps-bytes" else 1720.9,
        "seconds_total": 4.31 if model != "steps-bytes" else 11.87,
        "peak_memory": 640_000_000 + len(model),
        "groups": {"two steps": {"n": 120, "accuracy": 81.5}, "three steps": {"n": 180, "accuracy": 70}},
    }


def _decide(standing: list[dict[str, Any]]) -> list[str]:
    primary, selected = standing[0], []
    for each in standing:
        gap = primary["accuracy"] - each["accuracy"]
        lengths = sorted((primary["mean_length"], each["mean_length"]))
        ratio = lengths[1] / lengths[0]
        if each is primary:
            each["status"], each["reason"] = (
                "primary",
                f"the most accurate of {len(standing)} candidates ({primary['accuracy']:.2f} points)",
            )
        elif gap > RULES["max_gap"]:
            each["reason"] = f"its gap to the primary is {gap:.2f} points, over the limit of {RULES['max_gap']:g}"
        elif ratio > RULES["max_length_ratio"]:
            each["reason"] = (
                f"its mean length is {ratio:.2f} times the primary's, over the limit of {RULES['max_length_ratio']:g}"
            )
        elif len(selected) < RULES["max_models"]:
            each["status"], each["reason"] = (
                "selected",
                f"its gap to the primary is {gap:.2f} points, and the length ratio is {ratio:.2f}",
            )
        if each["status"] != "rejected":
            selected.append(each["model"])
    chosen = [each for each in standing if each["status"] == "selected"]
    for each in chosen[-1:]:
        each["close_call"] = "the gap could as well be over the limit: its interval is 3.1 to 14.9 points"
    return selected


def _failed() -> dict[str, Any]:
    return {
        "model": BROKEN,
        "accuracy": None,
        "accuracy_ci": None,
        "mean_length": None,
        "truncated": 0,
        "errors": 0,
        "status": "failed",
        "reason": "model.safetensors ends after 1,024 bytes: download it again.",
        "close_call": None,
        "tokens_per_second": None,
        "seconds_total": None,
        "peak_memory": None,
        "groups": None,
    }


def _pairs(standing: list[dict[str, Any]], samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pairs = []
    for index, a in enumerate(standing):
        for b in standing[index + 1 :]:
            both = [(sample["responses"][a["model"]], sample["responses"][b["model"]]) for sample in samples]
            same_wrong = sum(x["score"] == y["score"] == 0 and x["extracted"] == y["extracted"] for x, y in both)
            lengths = sorted((a["mean_length"], b["mean_length"]))
            pairs.append(
                {
                    "a": a["model"],
                    "b": b["model"],
                    "gap": round(a["accuracy"] - b["accuracy"], 2),
                    "length_ratio": round(lengths[1] / lengths[0], 3),
                    "bleu": round(100 * sum(x["text"] == y["text"] for x, y in both) / len(both), 1),
                    "both_wrong_same": round(same_wrong / len(both), 4),
                    "kappa": round(_kappa([(x["score"], y["score"]) for x, y in both]), 3),
                    "oracle": round(100 * sum(max(x["score"], y["score"]) for x, y in both) / len(both), 2),
                    "vocabulary_overlap": 0.25,
                }
            )
    return pairs


def _kappa(scores: list[tuple[float, float]]) -> float:
    n = len(scores)
    agree = sum(x == y for x, y in scores) / n
    p, q = sum(x for x, _ in scores) / n, sum(y for _, y in scores) / n
    chance = p * q + (1 - p) * (1 - q)
    return (agree - chance) / (1 - chance) if chance < 1 else 1.0


def _ensemble(selected: list[str], samples: list[dict[str, Any]]) -> dict[str, Any]:
    members = [_standing(model, samples) for model in selected]
    best = max(members, key=lambda member: member["accuracy"])
    joint = [sample["ensemble"] for sample in samples]
    right = sum(response["score"] for response in joint)
    changes = [sample["ensemble"]["score"] - sample["responses"][best["model"]]["score"] for sample in samples]
    n, mean = len(changes), sum(changes) / len(changes)
    half = 1.96 * math.sqrt(sum((change - mean) ** 2 for change in changes) / n / n)
    keys = ("model", "accuracy", "accuracy_ci", "mean_length", "tokens_per_second", "seconds_total", "peak_memory")
    return {
        "method": "unite",
        "k": 10,
        "n": n,
        "split": "held_out",
        "accuracy": round(100 * right / n, 2),
        "accuracy_ci": wilson(right, n),
        "best_single_accuracy": best["accuracy"],
        "best_single_model": best["model"],
        "difference": round(100 * mean, 2),
        "difference_ci": [round(100 * (mean - half), 2), round(100 * (mean + half), 2)],
        "p_two_sided": _mcnemar(sum(change > 0 for change in changes), sum(change < 0 for change in changes)),
        "gained": sum(change > 0 for change in changes),
        "lost": sum(change < 0 for change in changes),
        "measured_gain": round(100 * mean, 2),
        "measured_gain_ci": [
            round(100 * (mean - half / 1.96 * 1.645), 2),
            round(100 * (mean + half / 1.96 * 1.645), 2),
        ],
        "p_adjusted": _one_sided(sum(change > 0 for change in changes), sum(change < 0 for change in changes)),
        "questions": n,
        "answered": n,
        "mean_length": round(sum(response["length"] for response in joint) / n, 2),
        "tokens_per_second": 612.4,
        "seconds_total": 9.8,
        "peak_memory": 1_712_000_000,
        "truncated": 0,
        "members": [{key: member[key] for key in keys} for member in members],
    }


def make_strategies(members: list[str], samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make the strategies on the held-out questions, best first: models alone, a vote, and the ensemble."""
    if not samples:
        return []
    alone = {name: [sample["responses"][name]["score"] for sample in samples] for name in members}
    voted = [_vote([sample["responses"][name] for name in members]) for sample in samples]
    joint = [sample["ensemble"]["score"] for sample in samples]
    best = max(members, key=lambda name: sum(alone[name]))
    asked = [
        2 if len({sample["responses"][name]["extracted"] for name in members[:2]}) == 1 else 3 for sample in samples
    ]
    rows = [
        *(_strategy("single", [name], alone[name], 1.0, best, alone[best]) for name in {members[0]: 0, best: 0}),
        _strategy("vote", members, voted, sum(asked) / len(asked), best, alone[best]),
        _strategy("unite", members, joint, 3.0, best, alone[best]),
    ]
    return sorted(rows, key=lambda row: -row["accuracy"])


def recommend(strategies: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Make the recommendation: the first strategy."""
    if not strategies:
        return None
    best = strategies[0]
    what = strategy_of(best, "", "", to_run=False).describe()
    keys = ("strategy", "members", "calls_per_question", "seconds_per_question", "shown")
    return {
        **{key: best[key] for key in (*keys, "price_per_1000")},
        "method": "unite" if best["strategy"] == "unite" else None,
        "expected_gain": best["expected_gain"],
        "expected_gain_ci": best["expected_gain_ci"],
        "min_gain": 0.0,
        "text": f"{what}: over {best['best_single_model']} the expected gain is {best['expected_gain']:+.1f} points.",
    }


def _prediction(selected: list[str]) -> dict[str, Any]:
    sets = [selected, selected[:2], [selected[0], "steps-bytes"]]
    return {
        "set_by": "rules",
        "sets": [
            {
                "models": models,
                "predicted_gain": 4.0 - place,
                "predicted_gain_ci": [1.0 - place, 7.0 - place],
                "vote": 80.0,
                "oracle": 92.0,
                "rules": models == selected,
                "decoded": models == selected,
                "measured_gain": 6.0 if models == selected else None,
            }
            for place, models in enumerate(sets)
        ],
    }


def _looks(selected: list[str], held_out: int) -> list[dict[str, Any]]:
    """Two looks in one test: at half of the questions, and at all."""
    plan = sorted({max(held_out // 2, 1), held_out} - {0})
    look = {"questions": "2627d26346c2a913", "members": selected, "method": "unite", "k": 10, "plan": plan, "test": 1}
    figures = [(0.04, 0.96, 0.015), (0.0312, 0.9688, 0.045)]
    return [
        {**look, "n": n, "p_no_gain": p_no_gain, "p_no_loss": p_no_loss, "limit": limit}
        for n, (p_no_gain, p_no_loss, limit) in zip(plan, figures, strict=False)
    ]


def _groups(gain: float) -> list[dict[str, Any]]:
    """Gains in two groups; the second one is hurt."""
    rows = [("two steps", 40, gain + 4, "yes"), ("three steps", 60, -8.0, "no")]
    return [
        {"group": group, "n": n, "observed": points, "gain": points / 2, "gain_ci": [points / 2 - 3, points / 2 + 3]}
        | {"shown": shown}
        for group, n, points, shown in rows
    ]


def _vote(responses: list[dict[str, Any]]) -> float:
    answers = [response["extracted"] for response in responses if response["extracted"] is not None]
    # max takes the first of several, which is the most accurate model's.
    winner = max(answers, key=answers.count) if answers else None
    return next(response["score"] for response in responses if response["extracted"] == winner or winner is None)


def _strategy(
    name: str, members: list[str], scores: list[float], calls: float, best: str, measure: list[float]
) -> dict[str, Any]:
    changes, n = [own - other for own, other in zip(scores, measure, strict=True)], len(scores)
    mean = sum(changes) / n
    half = 1.645 * math.sqrt(sum((change - mean) ** 2 for change in changes) / n / n)
    gained, lost = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    p_value = _one_sided(gained, lost)
    p_adjusted = None if name == "single" else p_value if name == "vote" else min(1.0, 3 * p_value)
    return {
        "strategy": name,
        "members": members,
        "n": n,
        "split": "held_out",
        "accuracy": round(100 * sum(scores) / n, 2),
        "accuracy_ci": wilson(sum(scores), n),
        "best_single_accuracy": round(100 * sum(measure) / n, 2),
        "best_single_model": best,
        "measured_gain": round(100 * mean, 2),
        "measured_gain_ci": [round(100 * (mean - half), 2), round(100 * (mean + half), 2)],
        "p_no_gain": p_value,
        "p_adjusted": p_adjusted,
        "shown": "yes" if p_adjusted is not None and p_adjusted <= 0.05 else "not_yet",
        "questions": n,
        "answered": n,
        "expected_gain": round(80 * mean, 2),
        "expected_gain_ci": [round(100 * (mean - half), 2), round(100 * (mean + half), 2)],
        "predicted_gain": 3.5 if name == "vote" else None,
        "predicted_gain_ci": [0.5, 6.5] if name == "vote" else None,
        "groups": _groups(100 * mean) if name == "vote" else None,
        "gained": gained,
        "lost": lost,
        "calls_per_question": calls,
        "tokens_per_question": 12.5 * calls,
        "seconds_per_question": 0.04 * calls,
        "price_per_1000": 0.5 * calls,
    }


def _one_sided(gained: int, lost: int) -> float:
    n = gained + lost
    return round(sum(math.comb(n, i) for i in range(lost + 1)) / 2**n, 5)


def _mcnemar(gained: int, lost: int) -> float:
    n, fewer = gained + lost, min(gained, lost)
    return round(min(1.0, 2 * sum(math.comb(n, i) for i in range(fewer + 1)) / 2**n), 5)


def _advice(selected: list[str], samples: list[dict[str, Any]]) -> dict[str, str]:
    if not samples:
        return {"verdict": "unclear", "text": "The set was not run together, so nothing is known of its gain."}
    run = _ensemble(selected, samples)
    names = " and ".join([", ".join(selected[:-1]), selected[-1]])
    reached = f"{run['accuracy']:.1f} points, {run['difference']:.1f} more than {run['best_single_model']} alone"
    questions = f"{run['n']} held-out question{'s' if run['n'] > 1 else ''}"
    text = f"Decoded together, {names} are better than one model alone: on {questions} they reach {reached}."
    return {"verdict": "better", "text": text}


def _provenance() -> dict[str, Any]:
    names = [*CANDIDATES, BROKEN]
    return {
        "command": "advisor select --pool demo --task word_problems --out runs/demo",
        "date": "2026-01-12T09:14:03Z",
        "versions": {"unite-advisor": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "transformers": "5.1.0"},
        "seed": 0,
        "models": {
            name: {
                "path_or_id": f"demo/models/{name}",
                "revision": None,
                "files": {"config.json": f"{index:064x}", "model.safetensors": f"{index * 7919 + 5:064x}"},
            }
            for index, name in enumerate(names)
        },
        "device": "cpu",
        "dtype": "float32",
    }


def make_judges() -> tuple[dict[str, Any], dict[str, Any]]:
    """``judge`` of a file: of a judge that compares responses, and of one that grades them; each has a second one."""
    chance = random.Random(0)
    questions, models = [str(n) for n in range(5)], [*CANDIDATES][:3]
    pairs = [Match(q, *names, chance.choice((0.0, 0.5, 1.0))) for q in questions for names in permutations(models, 2)]
    others = [each._replace(score=chance.choice((0.0, 1.0, None))) for each in pairs]
    grades = [[Grade(q, model, chance.random()) for q in questions for model in models] for _ in range(2)]
    lengths = {(q, model): chance.randrange(100) for q in questions for model in models}
    found = head_to_head(pairs, dict.fromkeys(questions, models[1]), models[0]) or {}
    met = {"strategy": "vote", "members": models, "rival": models[0], **found}
    figures = summarize_matches([pairs, others], pairs[:1], lengths)
    compared = written(JudgedSplit(split="held_out", calls=30, **figures))
    graded = {"split": "held_out", "calls": 15, **summarize_grades(grades, lengths, 0.1)}
    names = ["judge", "second judge"]
    return (
        {"mode": "pairwise", "judges": names, "splits": [compared | {"split": "dev"}, compared], "head_to_head": [met]},
        {"mode": "single", "judges": names, "splits": [graded], "head_to_head": []},
    )
