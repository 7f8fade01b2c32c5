"""Quantisation: weights that are rounded to 4 or 8 bits while a model is loaded, by bitsandbytes on a CUDA GPU.

A quantised model is another model: its responses differ, so its name in the cache and in a saved ensemble says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ensemble.errors import InputError

ROUNDING = ("bitsandbytes", "accelerate")
"""The packages that it needs besides a GPU."""


def quantization_config(quantization: str) -> dict[str, Any]:
    """The configuration for transformers as JSON has it, so that a saved ensemble holds all of it.

    Args:
        quantization: One of QUANTIZATIONS.
    """
    if quantization == "8bit":
        return {"quant_method": "bitsandbytes", "load_in_8bit": True}
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        # The settings of the QLoRA paper: values spaced for normally distributed weights, and scales rounded as well.
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bfloat16",
    }


def kind_of(config: object) -> str | None:
    """The quantisation that a configuration means: one of QUANTIZATIONS; None for another one, or without any."""
    if not isinstance(config, Mapping):
        return None
    return "4bit" if config.get("load_in_4bit") else "8bit" if config.get("load_in_8bit") else None


def check_quantization(name: str, quantization: str | None, device: str) -> None:
    """Check that this machine can quantise a model.

    Args:
        name: The model.
        quantization: One of QUANTIZATIONS; None to check nothing.
        device: The device that it runs on, not ``auto``.

    Raises:
        InputError: The GPU or the package is missing; the message names the model and a way out.
    """
    if quantization is None:
        return
    # Here and not while it is loaded, where the library's error would come after the download.
    said = f"{name}: quantization={quantization}"
    if device.partition(":")[0] != "cuda":
        raise InputError(
            f"{said} needs a CUDA GPU, and it runs on {device}; leave it out, or serve the model (openai:http://...)"
        )
    for package in ROUNDING:
        if find_spec(package) is None:
            raise InputError(f"{said} needs {package}; install it (pip install {package}), or leave it out")
