"""``advisor doctor``: what this machine and this installation can do."""

from __future__ import annotations

from typing import Any

import typer

from advisor.commands.command_line import print_json
from advisor.options.setup import DoctorOptions


def doctor(options: DoctorOptions) -> None:
    """Show the machine, versions, the hub, the cache, and with --pool which models fit. Status 1 if one cannot run."""
    from advisor.config import InferenceConfig, load_split
    from advisor.jobs.planning import machine, words
    from advisor.jobs.planning.plan import plan_model, plan_together, problem_of, tokens_written
    from advisor.pool.fit import place_models
    from advisor.pool.pool_file import read_pool
    from advisor.profile.loaded_models import silence_libraries
    from ensemble.common.files import default_cache_dir
    from ensemble.common.text import visible

    silence_libraries(quiet=True)
    # Checked first: a wrong option must not wait for the hub.
    inference = InferenceConfig.from_options(options)
    entries = () if options.pool is None else read_pool(options.pool)
    for entry in entries:
        entry.check_trust(options.trust_remote_code, f"{entry.place}: {entry.name}")
    questions = None if options.task is None else load_split(options, "dev")
    found: dict[str, Any] = {
        "machine": machine.machine(),
        "versions": machine.versions(),
        "extras": machine.extras(),
        "quantization": machine.quantization(),
        "hub": machine.hub(),
        "cache": machine.cache_folder(options.cache_dir or default_cache_dir()),
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
    disk = machine.hub_cache() if download else found["cache"]
    if download > disk["free"]:
        free = words.memory(disk["free"])
        problems.append(f"{words.memory(download)} to download, and {disk['folder']} has {free}; free disk space")
    if not found["cache"]["writable"]:
        problems.append(f"{found['cache']['folder']} cannot be written; give --cache-dir")
    of_models = [plan["problem"] for plan in plans if plan["problem"] is not None]
    if options.as_json:
        models = [{name: value for name, value in plan.items() if name != "need"} for plan in plans]
        print_json({**found, "models": models, "together": together, "problems": [*of_models, *problems]})
    else:
        lines = [*words.machine_lines(found), *map(words.model_line, plans), *words.together_line(together)]
        lines += [f"placed       {placed}"] if placed else []
        lines += (
            [f"download     {words.memory(download)}, {words.memory(disk['free'])} of disk free"] if download else []
        )
        for line in (*lines, *words.problem_lines(problems)):
            print(visible(line))
    if of_models or problems:
        raise typer.Exit(1)
