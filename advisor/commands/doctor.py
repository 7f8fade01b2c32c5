"""``advisor doctor``: the machine, the installation, and which models of a pool can run here."""

from __future__ import annotations

from typing import Any

import typer

from advisor.commands.command_line import print_json
from advisor.jobs.planning import machine
from advisor.jobs.planning.plan import (
    machine_lines,
    memory,
    model_line,
    plan_model,
    plan_together,
    problem_lines,
    problem_of,
    set_summary,
    tokens_written,
)
from advisor.models.fit import place_models
from advisor.models.loaded_models import silence_libraries
from advisor.models.pool_file import read_pool
from advisor.models.run_config import InferenceConfig, check_consent, load_split
from advisor.options.setup import DoctorOptions
from ensemble.common.files import default_cache_dir
from ensemble.common.text import visible
from ensemble.models.hub_request import TOKEN_REFUSED


def doctor(options: DoctorOptions) -> None:
    """Look at all of it, and print it; status 1 if something keeps a run from working."""
    silence_libraries(quiet=True)
    # Checked first: a wrong option must not wait for the hub.
    inference = InferenceConfig.from_options(options)
    entries = () if options.pool is None else read_pool(options.pool)
    check_consent(entries, options)
    questions = None if options.task is None else load_split(options, "dev")
    found: dict[str, Any] = {
        "machine": machine.machine(),
        "versions": machine.versions(),
        "extras": machine.extras(),
        "quantization": machine.quantization(),
        "hub": machine.hub(),
        "cache": machine.cache_folder(options.cache_dir or default_cache_dir()),
        "downloads": machine.hub_cache(),
    }
    entries, placed = place_models(entries, options.device, options.dtype)
    # A token has about four characters; `--dry-run` counts them with each model's tokenizer.
    asked = [] if questions is None else [len(example.prompt) / 4 for example in questions.examples]
    prompt = int(sum(asked) / len(asked)) + 1 if asked else 512
    new = options.max_new_tokens or 256 if questions is None else tokens_written(questions, inference)
    plans = [
        plan_model(entry, inference, prompt=prompt, new=new, problem=problem_of(entry, inference)) for entry in entries
    ]
    together = plan_together(plans, options.max_models)
    # Those of models are in the models' lines already.
    problems: list[str] = []
    download = sum(plan["download"] or 0 for plan in plans)
    disk = found["downloads" if download else "cache"]
    if download > disk["free"]:
        free = memory(disk["free"])
        problems.append(f"{memory(download)} to download, and {disk['folder']} has {free}; free disk space")
    for name, way_out in (("cache", "give --cache-dir"), ("downloads", "set HF_HUB_CACHE")):
        if not found[name]["writable"]:
            problems.append(f"{found[name]['folder']} cannot be written; {way_out}")
    if found["hub"]["accepted"] is False:
        problems.append(TOKEN_REFUSED)
    of_models = [plan["problem"] for plan in plans if plan["problem"] is not None]
    if options.as_json:
        models = [{name: value for name, value in plan.items() if name != "need"} for plan in plans]
        print_json({**found, "models": models, "together": together, "problems": [*of_models, *problems]})
    else:
        lines = [*machine_lines(found), *map(model_line, plans), *set_summary(together)]
        lines += [f"placed       {placed}"] if placed else []
        lines += [f"download     {memory(download)}, {memory(disk['free'])} of disk free"] if download else []
        for line in (*lines, *problem_lines(problems)):
            print(visible(line))
    if of_models or problems:
        raise typer.Exit(1)
