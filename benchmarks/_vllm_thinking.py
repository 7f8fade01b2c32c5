"""What vLLM's reasoning parsers make of raw texts: ``build/vllm/bin/python -m benchmarks._vllm_thinking FILE``.

It runs in vLLM's own environment, which ``python -m benchmarks._vllm_environment`` makes. The tests compare with
``tests/data/vllm_thinking.json``. Each text goes through the parser as in vLLM's server, and the message of the answer
is kept. No model runs.

cohere_command3 and olmo3 are left out: one needs another package, the other the model's own tokenizer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

TOKENIZER = Path(__file__).resolve().parents[1] / "advisor" / "demo" / "models" / "thinking-llama"
"""Any tokenizer: the tags become special tokens of it."""
SPECIAL = (
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>", "<|channel>", "<channel|>"),
    *("<|open|>", "<|close|>", "<|sep|>"),
    *("<|content_thinking|>", "<|content_text|>", "<|message_model|>", "<|end_message|>"),
    *("<|plamo:begin_", "<|plamo:end_", ":plamo|>"),
    *("<mm:think>", "</mm:think>", "<ifm|think>", "</ifm|think>"),
)
NEEDED = ("[TOOL_CALLS]",)
"""Tokens that a parser looks for, though no text here has them."""


class Form(NamedTuple):
    """How the models of a parser write.

    Attributes:
        opening: What begins the thinking.
        closing: What ends it.
        plain: What begins an answer without thinking.
        end: What ends an answer.
        template: Whether the chat template of some of these models writes the opening tag.
        arguments: Arguments of the chat template without which the parser takes all for the answer.
    """

    opening: str = "<think>"
    closing: str = "</think>"
    plain: str = ""
    end: str = ""
    template: bool = False
    arguments: tuple[tuple[str, Any], ...] = ()


FINAL = "<|channel|>final<|message|>"
FORMS = {
    "deepseek_r1": Form(template=True),
    "deepseek_v3": Form(arguments=(("thinking", True),)),
    "ernie45": Form(),
    "glm45": Form(template=True),
    "hy_v3": Form(arguments=(("reasoning_effort", "high"),)),
    "kimi_k2": Form(),
    "k2_horizon": Form("<ifm|think>", "</ifm|think>", template=True),
    "mimo": Form(),
    "minimax_m2": Form(template=True),
    "minimax_m3": Form("<mm:think>", "</mm:think>"),
    "nemotron_v3": Form(template=True),
    "qwen3": Form(template=True),
    "mistral": Form("[THINK]", "[/THINK]"),
    "seed_oss": Form("<seed:think>", "</seed:think>"),
    "gemma4": Form("<|channel>thought\n", "<channel|>"),
    "openai_gptoss": Form("<|channel|>analysis<|message|>", f"<|end|><|start|>assistant{FINAL}", plain=FINAL),
    "granite": Form("Here is my thought process:", "Here is my response:"),
    "kimi_k3": Form(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|><|open|>response<|sep|>",
        plain="<|open|>response<|sep|>",
        end="<|close|>response<|sep|><|close|>message<|sep|>",
        template=True,
    ),
    "inkling": Form(
        "<|content_thinking|>",
        "<|end_message|><|message_model|><|content_text|>",
        plain="<|content_text|>",
        end="<|end_message|>",
    ),
    "plamo3": Form("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>", end="<|plamo:tag|>"),
    "hunyuan_a13b": Form("<think>\n", "\n</think>\n<answer>\n", end="\n</answer>"),
}
"""By the name of the parser."""


def opened(form: Form) -> list[tuple[str, str, bool]]:
    """Responses of a model that writes both tags: what each does, its text, and whether it was cut off."""
    opening, closing, plain, end, *_ = form
    return [
        ("thinks", f"{opening}2 + 2 is 4.{closing}\n\nIt is 4.{end}", False),
        ("thinks in lines", f"{opening}\n2 + 2.\n\nThat is 4.\n{closing}\n\nIt is\n4.\n{end}", False),
        ("thinks of nothing", f"{opening}\n\n{closing}\n\nIt is 4.{end}", False),
        ("does not think", f"{plain}It is 4.", False),
        ("is cut off", f"{opening}2 + 2 is", True),
        ("has tags in the answer", f"{opening}Which?{closing}\n\nBetween {opening} and {closing} it is.{end}", False),
        ("has tags, does not think", f"{plain}Between {opening} and {closing} it is.", False),
    ]


def of_template(form: Form) -> list[tuple[str, str, bool]]:
    """Those of a model whose template writes the opening tag."""
    return [
        ("thinks", f"2 + 2 is 4.\n{form.closing}\n\nIt is 4.", False),
        ("thinks in lines", f"\n2 + 2.\n\nThat is 4.\n{form.closing}\n\nIt is\n4.\n", False),
        ("is cut off", "2 + 2 is", True),
        ("has tags in the answer", f"Which?\n{form.closing}\n\nWith {form.closing} it is.", False),
    ]


def main() -> None:
    """Ask the parsers, and keep what they say."""
    from transformers import AutoTokenizer
    from vllm import __version__  # type: ignore[import-not-found]

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL, *NEEDED]})
    models = []
    for name, form in FORMS.items():
        models.append({"parser": name, "template": False, "responses": read(name, tokenizer, opened(form))})
        if form.template:
            models.append({"parser": name, "template": True, "responses": read(name, tokenizer, of_template(form))})
    found = json.dumps({"server": f"vLLM {__version__}", "models": models}, separators=(",", ":"))
    Path(sys.argv[1]).write_text(found + "\n", encoding="utf-8")


def read(name: str, tokenizer: Any, responses: list[tuple[str, str, bool]]) -> list[dict[str, Any]]:
    """What the server would answer for each response."""
    from vllm.entrypoints.openai.chat_completion.protocol import (  # type: ignore[import-not-found]
        ChatCompletionRequest,
        ChatMessage,
    )
    from vllm.entrypoints.openai.parser.harmony_utils import get_encoding  # type: ignore[import-not-found]
    from vllm.parser import ParserManager  # type: ignore[import-not-found]

    harmony = name == "openai_gptoss"
    parser_class = ParserManager.get_parser(reasoning_parser_name=name, is_harmony=harmony)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "2 + 2?"}])
    arguments = dict(FORMS[name].arguments)
    found = []
    for case, text, cut in responses:
        parser = parser_class(tokenizer, None, chat_template_kwargs=arguments, model_config=None)
        # The parser of gpt-oss reads the model's own tokens.
        ids = get_encoding().encode(text, allowed_special="all") if harmony else tokenizer.encode(text)
        reasoning, content, _ = parser.parse(text, request, model_output_token_ids=ids)
        message = ChatMessage(role="assistant", reasoning=reasoning, content=content)
        found.append({"case": case, "text": text, "cut": cut, "message": message.model_dump()})
    return found


if __name__ == "__main__":
    main()
