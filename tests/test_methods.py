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
        ({"nonsense": 1}, "method unite has no option nonsense; it has gate, mean"),
        ({"method": "gac", "gate": "safe"}, "method gac has no option gate; it has no options"),
        ({"method": "geometric", "mean": "arithmetic"}, "method geometric has no option mean; it has gate"),
        ({"gate": "shut"}, "gate 'shut': give safe, or None"),
        ({"mean": "harmonic"}, "mean 'harmonic': give arithmetic or geometric"),
        ({"weights": "equal"}, "weights 'equal': give a list of numbers, or 'perplexity'"),
        ({"method": "sweetspan", "weights": [1, 2]}, "method sweetspan: it weighs all members alike"),
        ({"method": "safe", "sharpen": "much"}, "method safe: sharpen 'much': give a finite number or None"),
        ({"method": "safe", "mean": ["geometric"]}, "method safe: mean ['geometric']: give a text"),
        ({"method": "safe", "sharpen": math.inf}, "method safe: sharpen inf: give a finite number or None"),
        ({"method": "eva", "whiten": "maybe"}, "method eva: whiten 'maybe': give true or false"),
        ({"method": "eva", "cells": True}, "method eva: cells True: give a whole number"),
        ({"method": "eva", "reweight": 10**400}, "method eva: reweight 1"),
        ({"method": "sweetspan", "words": 1.5}, "method sweetspan: words 1.5: give a whole number"),
        ({"method": "sweetspan", "words": 0}, "words is 0"),
        ({"method": "sweetspan", "outlier": 0.5}, "outlier is 0.5"),
        ({"method": "sweetspan", "think": "apart"}, "method sweetspan: think apart is for methods"),
        ({"think": "together"}, "method unite: think 'together': not one of apart"),
        ({"method": "eva", "cells": 0}, "cells is 0; it must be at least 1"),
        ({"method": "eva", "threshold": 0.0}, "threshold is 0.0; it must be above 0 and at most 1"),
        ({"method": "eva", "top": -1}, "top is -1; it must be 0 (all tokens) or more"),
        ({"method": "eva", "reweight": -0.5}, "reweight is -0.5; it must be 0 (no re-weighting) or more"),
        ({"method": "eva", "whiten": False}, "dewhiten is True without whiten; set dewhiten to False, too"),
        ({"method": "deepen", "steps": -1}, "steps is -1"),
        ({"method": "deepen", "learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"method": "deepen-adapt", "sharpness": math.inf}, "method deepen-adapt: sharpness inf: give a finite number"),
        ({"method": "deepen", "anchors": 5}, "anchors is 5; it must be 0 (all common tokens) or at least 16"),
        ({"method": "deepen", "anchors": 5000}, "method deepen: anchors is 5000, and the members have "),
        ({"method": "deepen", "optimiser": "sgd"}, "method deepen: optimiser 'sgd': not one of mirror, adamw"),
        ({"method": "deepen-adapt"}, "method deepen-adapt: it needs accuracies, one for each of 2 models, and has 0"),
        ({"method": "deepen-adapt", "accuracies": [3, 2], "chance": 9}, "method deepen-adapt: no accuracy"),
        (
            {"method": "deepen-adapt", "accuracies": [3, 2], "weights": [1, 2]},
            "method deepen-adapt: its weights follow",
        ),
        (
            {"method": "deepen-adapt", "accuracies": [70, "80"]},
            "method deepen-adapt: accuracies [70, '80']: give a list, and in it a finite number at each place",
        ),
        ({"method": "gac-threshold", "threshold": 1.5}, "threshold 1.5: give a probability, from 0 to 1"),
        ({"method": "average"}, "method average: it needs one vocabulary, and bytes-0 and unigram-1 differ in "),
    ],
)
def test_arguments_that_a_method_cannot_use_are_refused(given: dict[str, Any], message: str, tables: Path) -> None:
    with pytest.raises(InputError, match="^" + re.escape(message)):
        Ensemble([member("bytes"), member("unigram", 1)], cache_dir=tables, **given)
