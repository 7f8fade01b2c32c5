"""Checks of models before a run: each can be loaded on its device, and its weights can be read. No weights are read."""

from __future__ import annotations

import os
from collections.abc import Sequence

from advisor.pool.fit import check_together, need_of_model
from advisor.pool.resources import check_quantization, device_of, kind_of
from advisor.servers.identity import identify_server
from ensemble.errors import InputError, UniteError, first_line
from ensemble.models.check import check, check_tokenizer
from ensemble.models.hub import check_on_hub
from ensemble.models.model_files import files_of
from ensemble.models.spec import ChatTemplate, Checkpoint, ModelSpec, resolve_device


def check_pool(
    entries: Sequence[ModelSpec], device: str, chat_template: ChatTemplate, *, on_this_machine: bool
) -> None:
    """Check that the run can use every candidate. A server gets a request for its models and one for a few tokens.

    Args:
        entries: The pool.
        device: The device of entries that name none.
        chat_template: The use of chat templates for entries that do not set it.
        on_this_machine: Whether the models run on this machine. Devices of other machines are not checked.

    Raises:
        InputError: A candidate cannot be used; the message names its line in the pool file.
    """
    if on_this_machine:
        check_device("--device", device)
    for entry in entries:
        # The devices of a cluster's nodes are checked where Ray knows them.
        if on_this_machine and entry.device is not None:
            check_device(f"{entry.place}: device", entry.device)
        try:
            if entry.checkpoint.is_remote:
                identify_server(entry.checkpoint, entry.name, entry.chat_template or chat_template)
            else:
                if on_this_machine:
                    check_quantization(entry.name, kind_of(entry.quantization), device_of(entry, device, "local"))
                _check_checkpoint(entry.checkpoint)
        except InputError as error:
            raise InputError(f"{entry.place}: {error}") from error


def check_set(models: Sequence[ModelSpec], *, of_run: bool = False) -> None:
    """Check that every model of a set can be loaded on its device.

    Args:
        models: The set.
        of_run: Whether the devices are those of the run, and not those of an option.

    Raises:
        InputError: A model cannot be loaded.
    """
    for model in models:
        if model.checkpoint.is_remote:
            check_tokenizer(model.tokenizer)
            continue
        device = model.device or "auto"
        check_device(f"{model.name} ran on another device, which --device replaces" if of_run else "--device", device)
        check_quantization(model.name, kind_of(model.quantization), resolve_device(device))
        _check_checkpoint(model.checkpoint)
    check_together({model.name: (model.device or "auto", need_of_model(model)) for model in models})


def check_device(option: str, device: str) -> None:
    """Raise InputError, which begins with the option, unless a model can run on a device of this machine."""
    # Loads torch, so it is not at the top of the file.
    from ensemble.models.load import parse_device

    try:
        parsed = parse_device(device)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
    # torch knows this device, but tensors on it have no values.
    if parsed.type == "meta":
        raise InputError(f"{option}: device meta holds no numbers; use a device that computes, for example cpu")


def _check_checkpoint(checkpoint: Checkpoint) -> None:
    if not checkpoint.is_local:
        check_on_hub(checkpoint)
    try:
        check(checkpoint)
    except UniteError:
        raise
    # Code that comes with a model can raise anything.
    except Exception as error:
        raise InputError(
            f"its configuration cannot be read ({type(error).__name__}: {first_line(error)}); "
            "correct it, or remove the model",
            of=checkpoint.path_or_id,
        ) from error
    # Now, because an unreadable shard would end the run only when this model's turn comes.
    for path in files_of(checkpoint):
        if not os.access(path, os.R_OK):
            raise InputError(f"{path}: cannot be read; check that the download is complete, and the file permissions")
