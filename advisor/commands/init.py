"""``advisor init``: a task file for a user's data."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import typer

from advisor.models.pool_file import BUNDLED, is_pool
from advisor.options.new_run import InitOptions
from advisor.tasks.draft.columns import Columns
from advisor.tasks.draft.data import look_at
from advisor.tasks.draft.guesses import Guess, choice_columns, guess
from advisor.tasks.draft.task_text import Trial, check_free, text_of_task, try_out, write_task
from advisor.tasks.metrics import COMPARING, get_metric, metric_names
from advisor.tasks.tables.rows import stem_of
from ensemble.common.text import counted, visible
from ensemble.errors import InputError

_MOST_SHOWN = 1_200
"""Characters of a prompt that are shown."""


def init(options: InitOptions) -> None:
    """Guess, ask what no option gives, write the file, and show what models will get."""
    data = options.data[0]
    if is_pool(data) or (data in BUNDLED and not Path(data).exists()):
        raise InputError(f"{data} is a pool, with a model on each line; `advisor {data}` says what it is for")
    stem = stem_of(Path(data.rstrip("/")))
    chosen = options.name or re.sub(r"[^\w-]+", "-", stem).strip("-") or "questions"
    if not re.fullmatch(r"[\w.-]+", chosen):
        raise InputError(f"--name {chosen}: give letters, digits, - and _ only")
    place = options.out or Path(f"{chosen}.yaml")
    check_free(place, force=options.force)
    found_data = look_at(options.data, place, options.config)
    columns = Columns(found_data.records)
    try:
        found = guess(columns, options, is_of_parts=found_data.is_of_parts)
    except InputError as error:
        raise InputError(f"{error}{found_data.notes}") from error
    if not options.yes and sys.stdin.isatty():
        found = guess(columns, _ask(columns, options, found), is_of_parts=found_data.is_of_parts)
    command = shlex.join(["advisor", "init", *options.data])
    text = text_of_task(chosen, found, found_data, columns, command)
    trial = try_out(text, place, found_data.data_dir, allow_code_execution=options.allow_code_execution)
    # Before it is shown: the output may be piped into `head`, which ends the command.
    write_task(text, place)
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


def _ask(columns: Columns, given: InitOptions, found: Guess) -> InitOptions:
    """Let the user confirm or change what was guessed; what an option gives is not asked."""

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
        return text if text == options else ",".join(map(column, choice_columns(text))) or "none"

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
        given = given if chosen == options else replace(given, choices=chosen)
    if given.metric is None and chosen == "none":
        metric = found.keys["metric"] if found.keys["metric"] != "choice" else "exact_match"
        answer = ask("Metric", str(metric), known_metric)
        given = given if (given, answer) == (before, metric) else replace(given, metric=answer)
    return given


def _show(text: str, trial: Trial) -> None:
    """The task file, three prompts as models get them, and what the references score."""
    print(_plain(text))
    for number, example in enumerate(trial.dev.examples[:3], start=1):
        print(f"--- Prompt {number} of {len(trial.dev.examples):,} dev questions ---")
        print(_plain(_shortened(example.prompt)))
        if any(example.accepted):
            more = f" (and {len(example.accepted) - 1} more)" if len(example.accepted) > 1 else ""
            print(f"--- Reference: {_plain(_shortened(example.accepted[0], 200) + more)}")
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
    elif not trial.wrong and trial.dev.metric in COMPARING:
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
        way = "change these"
        if not any(get_metric("exact_match").score(other, (one,), ())[0] for one, other in trial.alike):
            way = "--metric exact_match tells them apart"
        pairs = ", ".join(f"{_shortened(one, 80)!r} and {_shortened(other, 80)!r}" for one, other in trial.alike[:3])
        count = f"{counted(len(trial.alike), 'pair')} of different answers"
        print(_plain(f"Warning: {count} count as one, so a wrong response can be right: {pairs}; {way}."))


def _shortened(text: str, most: int = _MOST_SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 2 :]}"


def _plain(text: str) -> str:
    # The data is untrusted: a terminal would obey escape sequences in it.
    return visible(text, keep_lines=True)
