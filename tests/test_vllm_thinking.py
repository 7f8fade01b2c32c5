"""Recorded answers of vLLM's reasoning parsers: the same texts are parted here as they are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ensemble.models.thinking import ThinkingReader

MODELS = json.loads((Path(__file__).parent / "data" / "vllm_thinking.json").read_text(encoding="utf-8"))["models"]
CASES = [(model, response) for model in MODELS for response in model["responses"]]
ALL = frozenset(model["parser"] for model in MODELS)
DIFFERENCES = {
    # These parsers take it that the template opened the thinking. Here the other responses of the model tell.
    "does not think": ALL
    - {
        "gemma4",
        "granite",
        "hunyuan_a13b",
        "inkling",
        "k2_horizon",
        "kimi_k3",
        "minimax_m3",
        "mistral",
        "openai_gptoss",
    },
    # These parsers take tags out of answers, and some move what is between them. Here answers keep them.
    "has tags in the answer": ALL
    - {
        "deepseek_r1",
        "deepseek_v3",
        "ernie45",
        "granite",
        "hunyuan_a13b",
        "hy_v3",
        "k2_horizon",
        "kimi_k3",
        "minimax_m3",
    },
    # These parsers take the first tag for one, wherever it is. Here thinking begins where the response does.
    "has tags, does not think": ALL,
    # These parsers give a section without an end as the answer. Here such a response has no answer.
    "is cut off": {"hunyuan_a13b", "k2_horizon"},
}
"""By case: where the parsers part a text otherwise."""
BEGINS = ("<|channel|>final<|message|>", "<|open|>response<|sep|>", "<|content_text|>")
ENDS = ("<|end_message|>", "<|plamo:tag|>")
"""Control text around answers, in texts of which parsers make something else than was meant."""


def parts(thinking: str | None, answer: str | None) -> tuple[str, str]:
    """Thinking and answer without the white space at their ends, which parsers keep."""
    return (thinking or "").strip(), (answer or "").strip()


def of_message(message: dict[str, Any]) -> tuple[str, str]:
    return parts(message["reasoning"], message["content"])


def meant(model: dict[str, Any], response: dict[str, Any]) -> tuple[str, str]:
    """What the text of a case was made of, where a parser gives something else."""
    text: str = response["text"]
    if response["case"] == "is cut off":
        return "2 + 2 is", ""
    if response["case"] == "has tags in the answer":
        answer = text[text.rindex("With" if model["template"] else "Between") :]
        return "Which?", next((answer.removesuffix(end) for end in ENDS if answer.endswith(end)), answer)
    return "", next((text.removeprefix(mark) for mark in BEGINS if text.startswith(mark)), text)


@pytest.mark.parametrize(
    ("model", "response"),
    [
        pytest.param(*case, id="-".join([case[0]["parser"], *["template"] * case[0]["template"], case[1]["case"]]))
        for case in CASES
    ],
)
def test_texts_are_parted_as_vllm_parts_them(model: dict[str, Any], response: dict[str, Any]) -> None:
    reader = ThinkingReader((each["text"], each["cut"]) for each in model["responses"])
    found = parts(*reader.read(response["text"], cut=response["cut"]))
    if model["parser"] == "hunyuan_a13b":
        # <answer> stays: a task may ask for it, and read what is in it.
        found = parts(found[0], found[1].removeprefix("<answer>").removesuffix("</answer>"))
    differs = model["parser"] in DIFFERENCES.get(response["case"], ())
    assert (found != of_message(response["message"])) == differs
    assert found == (meant(model, response) if differs else of_message(response["message"]))
