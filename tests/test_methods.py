"""The registry of methods: their declarations, and errors before anything runs."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import member

from ensemble import Ensemble
from ensemble.errors import InputError
from ensemble.methods import DEFAULT, get_method, get_module, list_methods


def test_listing_the_methods_loads_no_torch() -> None:
    code = "import sys; from ensemble.methods import list_methods; list_methods(); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.parametrize("name", list_methods())
def test_a_listed_method_is_the_declaration_of_its_module(name: str) -> None:
    assert list_methods()[name] == get_module(name).METHOD
    assert callable(get_module(name).make)


def test_the_default_method_comes_first() -> None:
    assert next(iter(list_methods())) == DEFAULT


def test_a_method_of_another_level_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"^method unite: it works at token level; use one of "):
        get_method("unite", ["response"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "nothing"}, "method 'nothing': not one of unite, average, "),
        ({"method": "safe", "nonsense": 1}, "method safe has no option nonsense; it has mean, sharpen"),
        ({"method": "gac", "gate": "safe"}, "method gac has no option gate; it has no options"),
        ({"weights": "equal"}, "weights 'equal': give a list of numbers"),
        ({"method": "sweetspan", "weights": [1, 2]}, "method sweetspan: it weighs all members alike"),
        ({"method": "safe", "sharpen": "much"}, "method safe: sharpen 'much': it should be a number"),
        (
            {"method": "safe", "mean": ["geometric"]},
            "method safe: mean ['geometric']: it should be arithmetic",
        ),
        ({"method": "safe", "sharpen": math.inf}, "method safe: sharpen inf: it should be a finite number"),
        ({"method": "eva", "threshold": 10**400}, "method eva: threshold 1"),
        ({"method": "eva", "cells": True}, "method eva: cells True: it should be a whole number"),
        ({"method": "sweetspan", "words": 1.5}, "method sweetspan: words 1.5: it should be a whole number"),
        ({"method": "sweetspan", "words": 0}, "words is 0"),
        ({"method": "sweetspan", "outlier": 0.5}, "outlier is 0.5"),
        ({"method": "sweetspan", "think": "apart"}, "method sweetspan: think apart is for methods"),
        ({"think": "together"}, "method unite: think 'together': not one of apart"),
        ({"method": "eva", "cells": 0}, "cells is 0; it must be at least 1"),
        ({"method": "eva", "threshold": 0.0}, "threshold is 0.0; it must be above 0 and at most 1"),
        ({"method": "eva", "top": -1}, "top is -1; it must be 0 (all tokens) or more"),
        ({"method": "deepen", "steps": -1}, "steps is -1"),
        ({"method": "deepen", "learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"method": "deepen-adapt", "accuracies": 7}, "method deepen-adapt: accuracies 7: it should be a list"),
        ({"method": "deepen-adapt"}, "method deepen-adapt: it needs accuracies, one for each of 2 models, and has 0"),
        ({"method": "deepen-adapt", "accuracies": [3, 2], "chance": 9}, "method deepen-adapt: no accuracy"),
        (
            {"method": "deepen-adapt", "accuracies": [3, 2], "weights": [1, 2]},
            "method deepen-adapt: its weights follow",
        ),
        (
            {"method": "deepen-adapt", "accuracies": [70, "80"]},
            "method deepen-adapt: accuracies [70, '80']: [1] should be a number",
        ),
        ({"method": "gac-threshold", "threshold": 1.5}, "threshold 1.5: give a probability, from 0 to 1"),
        ({"method": "average"}, "method average: it needs one vocabulary, and bytes-0 and unigram-1 differ in "),
    ],
)
def test_arguments_that_a_method_cannot_use_are_refused(given: dict[str, Any], message: str, tables: Path) -> None:
    with pytest.raises(InputError, match="^" + re.escape(message)):
        Ensemble([member("bytes"), member("unigram", 1)], cache_dir=tables, **given)
