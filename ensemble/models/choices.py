"""The values of some options of models, which the command line needs before pydantic is imported."""

from __future__ import annotations

from typing import Literal

ChatTemplate = Literal["auto", "always", "never"]
"""Whether prompts go through a tokenizer's chat template. ``auto``: if the tokenizer has one."""
CHAT_TEMPLATES = ("auto", "always", "never")
DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")
"""The numeric types of weights; ``auto`` is the stored one, or float32 where the device lacks that or is slow in it."""
GGUF_SUFFIX = ".gguf"
QUANTIZATIONS = ("4bit", "8bit")
"""How weights can be rounded while they are loaded; see :func:`ensemble.models.spec.quantization_config`."""
Reads = Literal["source", "prompt"]
"""What an encoder reads: the bare source of a prompt, or the same prompt that the other members continue."""
