"""Forms in which people and tools save responses, references, options and scores: for tests and benchmarks/reading.py.

Each was met in public: in answers of providers and servers, data sets of the hub, tables of pandas, and reports, which
are named (repository and number).
"""

from __future__ import annotations

from typing import Any

TEXT = "It is 5"
_MESSAGES = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": TEXT}]
_CHAT = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 4},
}
_ANTHROPIC = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "thinking", "thinking": "2 + 3"}, {"type": "text", "text": TEXT}],
    "stop_reason": "end_turn",
}
_RESPONSE = {
    "object": "response",
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low", "summary": None},
    "output": [
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": TEXT}]},
    ],
}
_GEMINI = {
    "candidates": [
        {
            "content": {"parts": [{"text": "hm", "thought": True}, {"text": TEXT}], "role": "model"},
            "finishReason": "STOP",
        }
    ]
}

RESPONSES: dict[str, Any] = {
    "list of one": [TEXT],
    "nested list of one": [[TEXT]],
    "content part": [{"type": "text", "text": TEXT}],
    "content parts": [{"type": "text", "text": ""}, {"type": "text", "text": TEXT}],
    "parts with a tool": [{"type": "text", "text": TEXT}, {"type": "tool_use", "name": "f", "input": {}}],
    "messages": _MESSAGES,
    "one message": _MESSAGES[1],
    "ShareGPT": [{"from": "human", "value": "2 + 3?"}, {"from": "gpt", "value": TEXT}],
    "OpenAI chat": _CHAT,
    "OpenAI completion": {"object": "text_completion", "choices": [{"text": TEXT, "finish_reason": "stop"}]},
    "OpenAI batch": {"response": {"status_code": 200, "request_id": "r", "body": _CHAT}, "error": None},
    "Responses API": _RESPONSE,
    "its output": _RESPONSE["output"],
    "Anthropic": _ANTHROPIC,
    "Anthropic batch": {"result": {"type": "succeeded", "message": _ANTHROPIC}},
    "Gemini": _GEMINI,
    "Ollama chat": {"message": {"role": "assistant", "content": TEXT}, "done": True, "done_reason": "stop"},
    "Ollama": {"response": TEXT, "done": True, "done_reason": "stop"},
    "Bedrock": {"output": {"message": {"role": "assistant", "content": [{"text": TEXT}]}}, "stopReason": "end_turn"},
    "Titan": {"results": [{"outputText": TEXT, "completionReason": "FINISH"}]},
    "Cohere": {
        "message": {"role": "assistant", "content": [{"type": "text", "text": TEXT}]},
        "finish_reason": "COMPLETE",
    },
    "SGLang": {"text": TEXT, "meta_info": {"finish_reason": {"type": "stop"}}},
    "vLLM": {"outputs": [{"index": 0, "text": TEXT, "finish_reason": "stop"}]},
    "pipeline": [{"generated_text": TEXT}],
    "chat pipeline": [{"generated_text": _MESSAGES}],
    "LangChain": {"content": TEXT, "type": "ai", "response_metadata": {}},
    "LangChain, saved": {"lc": 1, "type": "constructor", "kwargs": {"content": TEXT}},
    "text": {"text": TEXT},
    "content": {"content": TEXT},
}
"""Each says TEXT."""
UNKNOWN_RESPONSES: dict[str, Any] = {
    "two texts": [TEXT, "It is 6"],
    "keys of one's own": {"first": TEXT, "second": "It is 6"},
    "no assistant": [{"role": "user", "content": TEXT}],
    "a type of one's own": {"type": "span", "start": 3},
}
REFERENCES: dict[str, Any] = {
    "list": ["City 5", "Town 5"],
    "SQuAD": {"text": ["City 5", "Town 5", "City 5"], "answer_start": [3, 9, 3]},
    "several of SQuAD": [{"text": ["City 5"], "answer_start": [3]}, {"text": ["Town 5"], "answer_start": [9]}],
    "TriviaQA": {
        "value": "City 5",
        "aliases": ["City 5", "Town 5"],
        "normalized_value": "City 5",
        "normalized_aliases": ["Town 5"],
        "type": "WikipediaEntity",
    },
    "Natural Questions": {
        "id": ["1"],
        "long_answer": [{"start_byte": 3}],
        "short_answers": [{"text": ["City 5"]}, {"text": ["Town 5"]}],
        "yes_no_answer": [-1, -1],
    },
    "objects": [{"text": "City 5"}, {"text": "Town 5"}],
    "answers": {"answers": ["City 5", "Town 5"]},
    "with blanks": ["City 5", "", None, "Town 5"],
}
"""Each accepts "City 5" and "Town 5"."""
SPELLED_REFERENCES = {
    "NumPy": "['City 5' 'Town 5']",
    "NumPy in lines": "['City 5'\n 'Town 5']",
    "pandas": "{'text': array(['City 5', 'Town 5'], dtype=object), 'answer_start': array([3, 9], dtype=int32)}",
    "a set": "{'City 5', 'Town 5'}",
}
OPTIONS: dict[str, Any] = {
    "list": ["red", "green", "blue"],
    "letters": {"A": "red", "B": "green", "C": "blue"},
    "letters out of order": {"B": "green", "A": "red", "C": "blue"},
    "numbers": {"0": "red", "1": "green", "2": "blue"},
    "columns": {"opa": "red", "opb": "green", "opc": "blue"},
    "an empty one": {"A": "red", "B": "green", "C": "blue", "D": None},
    "ARC": {"text": ["red", "green", "blue"], "label": ["A", "B", "C"]},
    "TruthfulQA": {"choices": ["red", "green", "blue"], "labels": [1, 0, 0]},
    "objects": [{"label": "A", "text": "red"}, {"label": "B", "text": "green"}, {"label": "C", "text": "blue"}],
    "letters in texts": ["A) red", "B) green", "C) blue"],
    "AQuA": ["A)red", "B)green", "C)blue"],
}
SPELLED_OPTIONS = {
    "lines": "A. red\nB. green\nC. blue",
    "one line": "(A) red (B) green (C) blue",
    "without blanks": "(A)red(B)green(C)blue",
    "commas": "A) red, B) green, C) blue",
    "MathQA": "a ) red , b ) green , c ) blue",
    "C-Eval": "A、red\nB、green\nC、blue",
    "colons": "A: red B: green C: blue",
    "bars": "red|green|blue",
    "semicolons": "red; green; blue",
    "plain lines": "red\ngreen\nblue",
    "NumPy": "['red' 'green' 'blue']",
    "NumPy object": "array(['red', 'green', 'blue'], dtype=object)",
}
BLANK_REFERENCES: dict[str, Any] = {
    "null (vibrantlabsai/ragas 447)": None,
    "NaN of pandas (zzc-1998/Q-Eval 6)": float("nan"),
    "an empty list": [],
    "blanks": "  ",
    "SQuAD 2, no answer": {"text": [], "answer_start": []},
    "a list of an empty text": [""],
}
UNCLOSED = {
    "no end (openclaw/openclaw 37696)": "<think>5 and 5 and",
    "an end that a template opens (perplexityai/api-discussion 177)": "\n<think>\n5 and",
    "nothing but the tag (leookun/cursor-byok 86)": "<think>\n",
    "the tag at the end": "Let me see.\n<think>",
    "another family (QwenLM/qwen-code 8818)": "<thinking>5 and 5 and",
    "Magistral": "[THINK]5 and",
    "Kimi": "◁think▷5 and",
}
"""Thinking that was cut off before the answer 5."""
