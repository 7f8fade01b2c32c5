"""What the command line allows: every option is checked before anything is run or written."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import yaml

from advisor.pool.pool_file import CHAT_TEMPLATES, DTYPES, Candidate
from advisor.records import Rules
from advisor.servers.address import ServerAddress
from advisor.servers.identity import identify_server
from advisor.tasks.task import Task
from ensemble.errors import InputError, UniteError
from ensemble.methods import list_methods, make_options
from ensemble.models.check import check
from ensemble.models.fingerprint import files_of
from ensemble.models.hub import check_on_hub
from ensemble.models.spec import Checkpoint, ModelSpec, first_line


def check_rules(max_gap: float, max_length_ratio: float, max_models: int) -> Rules:
    """The rules, if their limits are in range.

    Raises:
        InputError: One of them is not; names the option and its range.
    """
    if not 0 <= max_gap <= 100:
        raise InputError(f"--max-gap {max_gap:g}: give points from 0 to 100")
    if not (math.isfinite(max_length_ratio) and max_length_ratio >= 1):
        raise InputError(f"--max-length-ratio {max_length_ratio:g}: give a ratio of at least 1")
    if max_models < 1:
        raise InputError(f"--max-models {max_models}: give at least 1")
    return Rules(max_gap, max_length_ratio, max_models)


def check_method(method: str, k: int) -> None:
    """Make sure that a method exists, and that k is in its range."""
    decoding = [name for name, found in list_methods().items() if found.level != "response"]
    if method not in decoding:
        raise InputError(f"--method {method}: not one of {', '.join(decoding)}")
    if k < 1:
        raise InputError(f"--k {k}: each member must bring at least 1 candidate")


def check_methods(methods: Sequence[str], k: int) -> None:
    """Make sure that methods to evaluate exist, each of them once, and that k is in its range."""
    known = list(list_methods())
    if not methods:
        raise InputError(f"--methods: name at least one of {', '.join(known)}")
    if unknown := next((name for name in methods if name not in known), None):
        raise InputError(f"--methods {unknown}: not one of {', '.join(known)}")
    if twice := next((name for name in methods if methods.count(name) > 1), None):
        raise InputError(f"--methods: {twice} is there twice; name each once")
    if k < 1:
        raise InputError(f"--k {k}: each member must bring at least 1 candidate")


def check_members(members: Sequence[str]) -> None:
    """Make sure that nobody is in a set twice."""
    if twice := next((name for name in members if members.count(name) > 1), None):
        raise InputError(f"--members: {twice} is there twice; name each once")


def check_options(settings: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings of methods, ``METHOD.NAME=VALUE`` each, by method and name.

    Raises:
        InputError: One is not of that form, or its method has no such setting, or not that value.
    """
    found: dict[str, dict[str, Any]] = {}
    for setting in settings:
        place, equals, value = setting.partition("=")
        method, _, name = place.partition(".")
        if not equals or method not in methods or not name:
            raise InputError(f"--set {setting}: give METHOD.NAME=VALUE, for a method of --methods")
        found.setdefault(method, {})[name] = yaml.safe_load(value)
    for method, options in found.items():
        make_options(method, options)
    return found


def check_unseen(evaluated: Task, dev: Task) -> None:
    """Make sure that a router is not judged by the questions that it learns from."""
    prompts = {example.prompt for example in dev.examples}
    if common := sum(example.prompt in prompts for example in evaluated.examples):
        raise InputError(
            f"--split {evaluated.split}: {common} of its {len(evaluated.examples)} questions are among the dev ones "
            "that the router learns from; give another split, or leave the router out"
        )


def check_loading(dtype: str, chat_template: str) -> None:
    """Make sure that a numeric type and a way to use chat templates exist."""
    _among("--dtype", dtype, DTYPES)
    _among("--chat-template", chat_template, CHAT_TEMPLATES)


def check_engine(engine: str, ray_address: str | None) -> None:
    """Make sure that an engine exists, and that an address is given for the one that has any."""
    _among("--engine", engine, ("local", "ray"))
    if ray_address is not None and engine != "ray":
        raise InputError(f"--ray-address {ray_address}: there is a cluster with --engine ray alone; add it")


def check_seed(seed: int) -> None:
    """Make sure that every draw can start from a seed."""
    if seed < 0:
        raise InputError(f"--seed {seed}: give 0 or more")


def check_race(level: float | None) -> None:
    """Make sure that the level of a race is a chance."""
    if level is not None and not 0 < level < 1:
        raise InputError(f"--race-level {level:g}: give a chance above 0, below 1")


def check_level(level: float) -> None:
    """Make sure that a level is one at which anything can be significant, and not everything is."""
    if not 0 < level < 1:
        raise InputError(f"--level {level:g}: give a chance above 0 and below 1, as 0.05")


def check_search(tries: int | None) -> None:
    """Make sure that a search has something to compare."""
    if tries is not None and tries < 2:
        raise InputError(f"--tries {tries}: give at least 2 sets, since one is the rules' own")


def check_sampling(temperature: float, top_p: float) -> None:
    """Make sure that tokens can be drawn like this."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"--temperature {temperature:g}: give 0, for the likeliest token, or more")
    if not 0 < top_p <= 1:
        raise InputError(f"--top-p {top_p:g}: give a share above 0, up to 1")


def check_stop(stop: Sequence[str]) -> None:
    """Make sure that a text can end with each of these."""
    if not all(stop):
        raise InputError("--stop '': every text ends with nothing; give what the text shall end before")


def check_disjoint(dev: Task, held_out: Task) -> None:
    """Make sure that models are not chosen by the questions on which their set is verified."""
    prompts = {example.prompt for example in held_out.examples}
    common = sum(example.prompt in prompts for example in dev.examples)
    # Of the dev split itself, none is ever held out.
    if dev.split != "dev" and common:
        raise InputError(
            f"--split {dev.split}: {common} of its {len(dev.examples)} questions are among the held-out ones that the "
            "set is verified on; give another split, or --no-verify"
        )


def check_pool(candidates: Sequence[Candidate], device: str, chat_template: str, *, here: bool = True) -> None:
    """Make sure that every candidate is a model that can be loaded where the run says, reading no weights.

    A server is asked whether it has the model, and the model for a few tokens.

    Args:
        candidates: The pool.
        device: For candidates that name none.
        chat_template: For candidates that say nothing of it.
        here: Whether they run on this machine; what devices others have shows there.

    Raises:
        InputError: One cannot be used; names its line in the pool file.
    """
    if here:
        check_device("--device", device)
    for candidate in candidates:
        if here and candidate.device is not None:
            check_device(f"{candidate.place}: device", candidate.device)
        try:
            if isinstance(candidate.checkpoint, ServerAddress):
                identify_server(candidate.checkpoint, chat=(candidate.chat_template or chat_template) != "never")
            else:
                check_checkpoint(candidate.checkpoint)
        except InputError as error:
            raise InputError(f"{candidate.place}: {error}") from error


def check_models(models: Sequence[ModelSpec]) -> None:
    """Make sure that every model of a set can be loaded as it says."""
    for model in models:
        check_device("--device", model.device)
        check_checkpoint(model.checkpoint)


def check_device(option: str, device: str) -> None:
    """Make sure that this machine has a device."""
    from ensemble.models.load import parse_device

    try:
        place = parse_device(device)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
    if place.type == "meta":
        raise InputError(f"{option}: device meta holds no numbers; use one that computes, as cpu does")


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Make sure that a checkpoint can be a member, with weights that may be read, on the hub too.

    Raises:
        InputError: It is not, or cannot be reached.
    """
    if not checkpoint.is_local:
        check_on_hub(checkpoint)
    try:
        check(checkpoint)
    except UniteError:
        raise
    except Exception as error:  # of code that came with the model
        raise InputError(
            f"{checkpoint.path_or_id}: its configuration cannot be read ({type(error).__name__}: {first_line(error)}); "
            "leave the model out, or mend it"
        ) from error
    for path in files_of(checkpoint):
        if not os.access(path, os.R_OK):
            raise InputError(f"{path}: cannot be read; the download may be incomplete, or the right to read it missing")


def check_batch_size(batch_size: str) -> int | None:
    """Prompts at a time; None for ``auto``."""
    if batch_size == "auto":
        return None
    if not batch_size.isascii() or not batch_size.isdigit() or int(batch_size) < 1:
        raise InputError(f"--batch-size {batch_size}: give a number of at least 1, or auto")
    return int(batch_size)


def check_tokens(max_new_tokens: int | None) -> int | None:
    """Tokens after which a response is cut off; None for the task's own."""
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InputError(f"--max-new-tokens {max_new_tokens}: give at least 1")
    return max_new_tokens


def _among(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{option} {value}: not one of {', '.join(allowed)}")
