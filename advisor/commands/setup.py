"""The commands that prepare a run: ``advisor init`` and ``advisor doctor``."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from advisor.commands.command_line import print_json
from advisor.options.setup import DoctorOptions, InitOptions
from ensemble.common.text import counted
from ensemble.errors import InputError

if TYPE_CHECKING:
    from advisor.draft.columns import Columns
    from advisor.draft.guesses import Given, Guess
    from advisor.draft.task_text import Trial
    from advisor.tasks.task import Example


_MOST_SHOWN = 1_200
"""Characters of a prompt that are shown."""


def init(options: InitOptions) -> None:
    """Write a task file for your data: guess the question, the answer, the metric and the split, and say why."""
    from advisor.draft.columns import Columns
    from advisor.draft.data import look_at
    from advisor.draft.guesses import Given, guess
    from advisor.draft.task_text import check_free, text_of_task, try_out, write_task
    from advisor.pool.pool_file import check_no_pool
    from advisor.tables.rows import stem_of

    check_no_pool(options.data[0])
    stem = stem_of(Path(options.data[0].rstrip("/")))
    chosen = options.name or re.sub(r"[^\w-]+", "-", stem).strip("-") or "questions"
    if not re.fullmatch(r"[\w.-]+", chosen):
        raise InputError(f"--name {chosen}: give letters, digits, - and _ only")
    place = options.out or Path(f"{chosen}.yaml")
    check_free(place, force=options.force)
    found_data = look_at(options.data, place, options.config)
    columns = Columns(found_data.records)
    choices = None if options.choices is None else _names(options.choices)
    given = Given(options.question, options.reference, choices, options.metric, options.decimal)
    found = guess(columns, given, is_of_parts=found_data.is_of_parts)
    if not options.yes and sys.stdin.isatty():
        found = guess(columns, _ask(columns, given, found), is_of_parts=found_data.is_of_parts)
    command = shlex.join(["advisor", "init", *options.data])
    text = text_of_task(chosen, found, found_data, columns, command)
    trial = try_out(text, place, found_data.data_dir, allow_code_execution=options.allow_code_execution)
    # Before it is shown: the output may be piped into `head`, which ends the command.
    write_task(text, place, force=options.force)
    _show(text, trial)
    data_dir = "" if found_data.data_dir is None else f" --data {shlex.quote(str(found_data.data_dir))}"
    more = " --allow-code-execution" if trial.dev.runs_code else ""
    pool, models = "demo", "the demo's models, or with yours in place of demo"
    if trial.dev.metric == "judge":
        # The demo's models can grade nothing.
        pool, models = "models.txt", "your models, one in each line of models.txt, and a stronger one as MODEL"
        more = " --judge MODEL"
    print(f"\n{_plain(str(place))} is written. Next, with {models}:")
    print(f"  advisor select --pool {pool} --task {_plain(shlex.quote(str(place)))}{_plain(data_dir)}{more}")


def _names(text: str) -> tuple[str, ...]:
    return () if text.strip().lower() in ("", "none") else tuple(part.strip() for part in text.split(","))


def _ask(columns: Columns, given: Given, found: Guess) -> Given:
    """Let the user confirm or change what was guessed; what an option gives is not asked."""
    from advisor.tasks.metrics import metric_names

    def column(text: str) -> str:
        try:
            return columns.named(text)
        except InputError as error:
            raise typer.BadParameter(str(error)) from error

    def known_metric(text: str) -> str:
        if text not in metric_names():
            raise typer.BadParameter(f"choose among {', '.join(metric_names())}")
        return text

    options = ",".join(found.options) or "none"

    def known_options(text: str) -> str:
        # The guess may be an expression, which is no list of columns.
        return text if text == options else ",".join(map(column, _names(text))) or "none"

    def ask(what: str, default: str, read: Callable[[str], str]) -> str:
        def confirmed(text: str) -> str:
            is_yes = text.strip().lower() in ("y", "yes") and text.strip() not in columns.values
            return default if is_yes else read(text)

        try:
            return str(typer.prompt(what, default=default, value_proc=confirmed))
        except typer.Abort as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise
            raise InputError(f"{what}: there is no more input; give --yes to take all guesses") from None

    print(f"{columns.count:,} records with the columns {columns.listed()}. Press Enter to take a guess.")
    before = given
    if given.question is None:
        question = ask("Question", found.question, column)
        # An untouched guess is made again, so that the file has its reason.
        given = given if question == found.question else replace(given, question=question)
    if found.reference is not None and given.reference is None:
        reference = ask("Reference", found.reference, column)
        # With another question, another reference could be guessed than the one that was just confirmed.
        given = given if (given, reference) == (before, found.reference) else replace(given, reference=reference)
    chosen = options
    if given.choices is None and found.keys["metric"] not in ("pass_at_1", "judge"):
        chosen = ask("Options", options, known_options)
        given = given if chosen == options else replace(given, choices=_names(chosen))
    if given.metric is None and chosen == "none":
        metric = found.keys["metric"] if found.keys["metric"] != "choice" else "exact_match"
        answer = ask("Metric", str(metric), known_metric)
        given = given if (given, answer) == (before, metric) else replace(given, metric=answer)
    return given


def _show(text: str, trial: Trial) -> None:
    """The task file, three prompts as models get them, and what the references score."""
    from advisor.tasks.metrics import OF_CORPORA

    print(_plain(text))
    for number, example in enumerate(trial.dev.examples[:3], start=1):
        print(f"--- Prompt {number} of {len(trial.dev.examples):,} dev questions ---")
        print(_plain(_shortened(example.prompt)))
        if any(example.accepted):
            print(f"--- Reference: {_plain(_shown_reference(example))}")
    for note in dict.fromkeys((*trial.dev.notes, *trial.held_out.notes)):
        print(f"Note: {_plain(note)}")
    print(f"\n{len(trial.dev.examples):,} dev questions choose, {len(trial.held_out.examples):,} held-out ones verify.")
    if len(trial.held_out.examples) < 100:
        print("These are few: a few hundred in each show smaller differences.")
    if trial.dev.metric == "judge":
        print("There is nothing to score here: a judge grades the models' responses.")
        if not any(any(example.accepted) for example in trial.dev.examples):
            print("No column with right answers was found. If your data has one, name it with --reference.")
    elif not trial.scored:
        print("The references were not scored, because that runs programs; give --allow-code-execution to do it.")
    elif not trial.wrong and trial.dev.metric in OF_CORPORA:
        print(f"All {trial.scored:,} references that were tried score 1.0; the same answer in other words scores less.")
    elif not trial.wrong:
        print(f"All {trial.scored:,} references that were tried score 1.0, as right answers must.")
    else:
        example, response = trial.wrong[0]
        score = trial.dev.score(example, response)
        print(
            f"Warning: {len(trial.wrong):,} of {trial.scored:,} references do not score 1.0, so a right answer would "
            f"not count. The first is {_plain(example.id)}: {_plain(_shortened(response.strip(), 200))!r} scores "
            f"{score.value:.2f}. Change metric, reference or extract."
        )
    if trial.alike:
        print(f"Warning: {_plain(_alike_line(trial))}")


def _alike_line(trial: Trial) -> str:
    """Which different references, or options, count as one answer, and what tells them apart."""
    from advisor.tasks.metrics import get_metric

    way = "change these"
    if not any(get_metric("exact_match").score(other, (one,), ())[0] for one, other in trial.alike):
        way = "--metric exact_match tells them apart"
    pairs = ", ".join(f"{_shortened(one, 80)!r} and {_shortened(other, 80)!r}" for one, other in trial.alike[:3])
    count = len(trial.alike)
    return (
        f"{counted(count, 'pair')} of different answers count as one, so a wrong response can be right: {pairs}; {way}."
    )


def _shown_reference(example: Example) -> str:
    more = f" (and {len(example.accepted) - 1} more)" if len(example.accepted) > 1 else ""
    return _shortened(example.accepted[0], 200) + more


def _shortened(text: str, most: int = _MOST_SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 2 :]}"


def _plain(text: str) -> str:
    from ensemble.common.text import visible

    # The data is untrusted: a terminal would obey escape sequences in it.
    return visible(text, keep_lines=True)


def doctor(options: DoctorOptions) -> None:
    """Show the machine, versions, the hub, the cache, and with --pool which models fit. Status 1 if one cannot run."""
    from advisor.config import InferenceConfig, check_consent, load_split
    from advisor.jobs.planning import machine
    from advisor.jobs.planning.plan import (
        machine_lines,
        memory,
        model_line,
        plan_model,
        plan_together,
        problem_lines,
        problem_of,
        together_line,
        tokens_written,
    )
    from advisor.pool.fit import place_models
    from advisor.pool.pool_file import read_pool
    from advisor.profile.loaded_models import silence_libraries
    from ensemble.common.files import default_cache_dir
    from ensemble.common.text import visible
    from ensemble.models.hub_request import TOKEN_REFUSED

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
        lines = [*machine_lines(found), *map(model_line, plans), *together_line(together)]
        lines += [f"placed       {placed}"] if placed else []
        lines += [f"download     {memory(download)}, {memory(disk['free'])} of disk free"] if download else []
        for line in (*lines, *problem_lines(problems)):
            print(visible(line))
    if of_models or problems:
        raise typer.Exit(1)
