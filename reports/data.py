"""What the page's script works with: one JSON block, in which no character can end the block or start markup."""

from __future__ import annotations

import json
from typing import Any

from reports.examples import TAGS, Example, Response, Samples
from reports.model import Result
from reports.traces import packed

_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def script_data(result: Result, samples: Samples | None) -> str:
    """Return the JSON for the map's limits and the example explorer, safe inside a ``script`` element."""
    data = {
        "rules": {
            "maxGap": result.rules.max_gap,
            "maxRatio": result.rules.max_length_ratio,
            "maxModels": result.rules.max_models,
        },
        "candidates": [
            {
                "name": each.model,
                "accuracy": each.accuracy,
                "length": each.mean_length,
                "failed": each.status == "failed",
            }
            for each in result.candidates
        ],
        "method": result.ensemble.method if result.ensemble else "",
        "tags": TAGS,
        "opening": samples.opening if samples else "",
        "examples": [_example(example) for example in samples.examples] if samples else [],
    }
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _example(example: Example) -> dict[str, Any]:
    responses = list(example.responses) + ([example.ensemble] if example.ensemble else [])
    return {
        "id": example.id,
        "split": example.split,
        "ask": example.ask,
        "prompt": example.prompt,
        "reference": example.reference,
        "tags": example.tags,
        "responses": [_response(response) for response in responses],
        **({"trace": packed(example.trace)} if example.trace else {}),
    }


def _response(response: Response) -> dict[str, Any]:
    """Return one response; what is usual is left out, as 200 examples of 5 candidates have a thousand of these."""
    written: dict[str, Any] = {"by": response.candidate, "text": response.text, "length": response.length}
    written |= {"right": 1} if response.right else {}
    written |= {"score": response.score} if response.score not in (0, 1) else {}
    written |= {"extracted": response.extracted} if response.extracted is not None else {}
    written |= {"end": response.finish_reason} if response.finish_reason in ("length", "error") else {}
    return written | ({"error": response.error} if response.error else {})
