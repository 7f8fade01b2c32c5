r"""``strategy.json``: a strategy that asks its models one by one, as ``advisor export`` writes it. It holds no weights.

    {
      "schema_version": 1,
      "strategy": "cascade", "members": ["a", "b", "far"], "weights": null, "routes": null, "draws": 1,
      "answers": {"metric": "number", "extract": "answer is (-?[0-9]+)"},
      "generation": {"max_new_tokens": 64, "stop": ["\n"]},
      "models": [
        {"name": "a", "id": "org/a", "revision": "<commit>", "dtype": "bfloat16", "chat_template": "never"},
        {"name": "b", "path": "../models/b", "files": {"model.safetensors": "<SHA-256>"}, "dtype": "float32"},
        {"name": "far", "server": {"address": "openai:http://127.0.0.1:8000/v1#far"}, "chat_template": "auto"}
      ],
      "dev": null
    }

``models`` has the entries of ``ensemble.json``, and servers. ``dev`` has the questions and scores that a router learns
from. The file may come from a stranger: every key is checked, and a server is contacted only with consent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from advisor.advice.strategies import VOTES
from advisor.runs.read.fields import Fields, is_text, read_object
from advisor.runs.schema.result import StrategyKey
from advisor.strategies.answers import AnswerReader
from advisor.strategies.plan import DevScores, StrategyPlan, is_score
from advisor.strategies.strategy_json import strategy_of
from ensemble.common.schema import validated
from ensemble.errors import InputError
from ensemble.saved.ensemble_json import member_from_json, member_to_json
from ensemble.saved.folder import STRATEGY_FILE, check_members

SCHEMA_VERSION = 1
_MOST_BYTES = 2**28
_WAY_OUT = "write the folder again with `advisor export`"
_KEYS = (
    *("schema_version", "strategy", "members", "weights", "routes", "draws"),
    *("answers", "generation", "models", "dev"),
)


def to_json(plan: StrategyPlan, folder: Path) -> str:
    """The content of ``strategy.json`` in a folder; local members have the hashes of their files."""
    strategy, reader, (prompts, scores) = plan.strategy, plan.reader, plan.learned
    content = {
        "schema_version": SCHEMA_VERSION,
        "strategy": strategy.name,
        "members": list(strategy.members),
        "weights": list(strategy.weights) or None,
        "routes": dict(strategy.routes) or None,
        "draws": strategy.draws,
        "answers": None if reader is None else {"metric": reader.metric, "extract": reader.extract},
        "generation": {"max_new_tokens": plan.max_new_tokens, "stop": list(plan.stop)},
        "models": [member_to_json(member, folder) for member in plan.members],
        "dev": {"prompts": list(prompts), "scores": [list(row) for row in scores]} if prompts else None,
    }
    return f"{json.dumps(content, indent=2, allow_nan=False)}\n"


def read_folder(folder: Path, *, trust_remote_code: bool = False, check_files: bool = True) -> StrategyPlan:
    """Read the ``strategy.json`` of a folder. No server is contacted.

    Args:
        folder: The folder.
        trust_remote_code: The user's consent that members run the code from their repositories.
        check_files: Whether local members must have the files with which they were exported.

    Raises:
        InputError: The file cannot be used, a member needs consent to run code, or a member has changed.
    """
    path = folder / STRATEGY_FILE
    # Before it is read: it may have any size.
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path}: it is larger than {_MOST_BYTES >> 20} MiB; {_WAY_OUT}")
    root = read_object(path, _WAY_OUT)
    root.check_version(frozenset({SCHEMA_VERSION}), "use a newer unite-advisor")
    # A key of a newer version may change what the strategy does.
    if unknown := next((key for key in root.values if key not in _KEYS), None):
        raise InputError(f"{path}: unknown key {unknown[:60]!r}; the keys are {', '.join(_KEYS)}")
    key = validated(StrategyKey, root.values, str(path), _WAY_OUT)
    strategy, generation, answers = strategy_of(key, str(path)), root.part("generation"), root.part("answers")
    generation.check("stop", "a list of texts that are not empty", _are_stops)
    generation.check("max_new_tokens", "a whole number of at least 1", _is_count)
    members = tuple(member_from_json(each.values, each.place, folder) for each in root.parts("models"))
    # Weights, scores and places in a cascade go by the order.
    if tuple(member.name for member in members) != strategy.members:
        root.refuse("models", "one object for each of members, in the same order")
    local = [member for member in members if not member.is_remote]
    check_members(local, str(path), trust_remote_code=trust_remote_code, check_files=check_files)
    return StrategyPlan(
        strategy,
        members,
        generation.values.get("max_new_tokens"),
        tuple(generation.values.get("stop") or ()),
        AnswerReader(answers.values.get("metric"), answers.values.get("extract"), answers.place)
        if strategy.name in VOTES
        else None,
        _read_dev(root.part("dev"), len(members)) if strategy.name == "router" else ((), ()),
    )


def _read_dev(dev: Fields, members: int) -> DevScores:
    dev.check("prompts", "a list of texts that are not empty", _are_prompts, required=True)
    prompts = dev.values["prompts"]
    expected = f"a list of {members} scores from 0 to 1 for each of prompts"
    dev.check("scores", expected, lambda value: _are_scores(value, len(prompts), members), required=True)
    return tuple(prompts), tuple(tuple(map(float, row)) for row in dev.values["scores"])


def _are_stops(value: Any) -> bool:
    return isinstance(value, list) and all(is_text(each) and each for each in value)


def _are_prompts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) and each.strip() for each in value)


def _are_scores(value: Any, rows: int, columns: int) -> bool:
    return isinstance(value, list) and len(value) == rows and all(_is_row(row, columns) for row in value)


def _is_row(row: Any, columns: int) -> bool:
    return isinstance(row, list) and len(row) == columns and all(map(is_score, row))


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**31
