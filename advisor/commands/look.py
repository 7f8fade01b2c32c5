"""``advisor FILE``: which command a file, a folder or a server stands for, by what is in it."""

from __future__ import annotations

import glob
import shlex
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from advisor.logs.join import needs_more
from advisor.logs.sources import LogSource, find_sources
from advisor.logs.table import models_of, roles_of, usual_roles
from advisor.models.pool_file import BUNDLED, TASKS, URL, is_pool, read_pool
from advisor.options.new_run import InitOptions
from advisor.run.folder import Run
from advisor.tasks.draft.columns import Columns
from advisor.tasks.draft.data import holds_data, look_at
from advisor.tasks.draft.guesses import guess
from advisor.tasks.load import find_task
from advisor.tasks.tables.rows import columns_of
from advisor.tasks.task_file import read_definition
from ensemble.common.files import exists
from ensemble.common.text import first_of, visible
from ensemble.errors import InputError
from ensemble.servers.address import ALL

SCREEN = """\
Find out which of your language models to combine, how, and whether it pays.

  advisor demo                        try it on six tiny models that are bundled
  advisor results/                    logs, or a table with models' answers: advice, and no model runs
  advisor questions.csv               questions and right answers: a task file for them
  advisor models.txt                  a file with a model in each line: how to choose among them
  advisor http://localhost:11434/v1   a server with models: the same
  advisor runs/demo                   a finished run: what it recommends, and how to use it

Each says which command it stands for. All commands: advisor --help
"""
"""What ``advisor`` prints that is given nothing."""


def is_looked_at(word: str) -> bool:
    """Whether a first word that is no command names what is looked at; otherwise it is a command that is misspelt."""
    return word in BUNDLED or bool(URL.match(word)) or not set("./*").isdisjoint(word) or exists(Path(word))


def look(words: Sequence[str]) -> list[str]:
    """The command line that files stand for, with the options behind them; empty where all is printed already."""
    given = list(takewhile(lambda word: not word.startswith("-"), words))
    options, first = list(words[len(given) :]), given[0]
    pools = [each for each in given if each in BUNDLED or URL.match(each) or is_pool(each)]
    if missing := next((each for each in given if each not in pools and not _matches(each)), None):
        raise InputError(f"{missing}: no such file or folder; correct the path, or give a command of advisor --help")
    tasks = [each for each in given if Path(each).suffix.lower() in TASKS and Path(each).is_file()]
    if first in BUNDLED and len(given) == 1:
        tasks = ["word_problems"]
        options = options if "--out" in options else ["--out", f"runs/{first}", *options]
    note = ""
    if pools or tasks:
        if max(len(pools), len(tasks)) > 1 or not {*given} <= {*pools, *tasks}:
            raise InputError(f"{shlex.join(given)}: a pool goes with one task file; give one of each, or other files")
        if not (options or (pools and tasks)):
            _show_next(pools, tasks)
            return []
        found = ["select", *_each("--pool", pools), *_each("--task", tasks)]
    elif len(given) == 1 and exists(Path(first) / "result.json"):
        if not options:
            _show_run(Path(first))
            return []
        found = ["report", first]
    elif sources := _sources(given):
        is_of_runs = Path(first).is_dir() and all(source.format == "run_folder" for source in sources)
        found = ["report", first] if is_of_runs and len(given) == 1 else ["select", *_each("--logs", given)]
        if {"--metric", "--column"}.isdisjoint(options):
            found += _metric_for(next((each.path for each in sources if each.format == "table"), None))
    elif all(holds_data(Path(each)) for each in given):
        found, note = _for_tables(given, options)
    else:
        raise InputError(
            f"{first}: no log, table, pool, task file or run is found in it; give one of these, or a command of "
            "advisor --help"
        )
    found += options
    if "--quiet" not in options:
        print(visible(f"The same as: {shlex.join(['advisor', *found])}{note}"), file=sys.stderr)
    return found


def _for_tables(given: Sequence[str], options: Sequence[str]) -> tuple[list[str], str]:
    """The command for tables without columns of usual names for answers, and what else it may be."""
    table = given[0]
    if len(given) == 1 and "--column" not in options and (models := models_of(Path(table))):
        metric = [] if "--metric" in options else _metric_for(Path(table))
        return ["select", "--logs", table, "--column", f"models={','.join(models)}", *metric], ""
    way = f"advisor select --logs {shlex.quote(table)} --column models=NAME,..."
    return ["init", *given], f"; if it has a column for each model: {way}"


def _each(flag: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _matches(text: str) -> bool:
    return exists(Path(text)) or bool(glob.glob(text, recursive=True))  # noqa: PTH207  # which takes absolute ones


def _sources(given: Sequence[str]) -> list[LogSource]:
    """The logs among files; none if they are only tables without answers."""
    try:
        found = find_sources(given, [])
    except InputError:
        return []
    # A table that a user names is a log for `select --logs`, whatever it has.
    return found if any(each.format != "table" or roles_of(each.path) for each in found) else []


def _metric_for(table: Path | None) -> list[str]:
    """The option that scores a table's answers, which have references and no scores, as ``advisor init`` would."""
    roles = {} if table is None else usual_roles(columns_of(table))
    if table is None or "score" in roles or "reference" not in roles:
        return []
    columns = Columns(look_at([str(table)], Path("task.yaml")).records)
    keys = guess(columns, InitOptions(data=(str(table),), reference=roles["reference"])).keys
    metric, pattern = str(keys["metric"]), f":{keys['extract']}" if "extract" in keys else ""
    if metric == "choice" and "choices" not in roles:
        # Logs have the options of a question in one column.
        metric = "exact_match"
    return [] if needs_more(metric) else ["--metric", f"{metric}{pattern}"]


def _show_next(pools: Sequence[str], tasks: Sequence[str]) -> None:
    """Print the command that a pool, or a task file, is for, and what it lacks."""
    for given in pools:
        pool, kind = given, "is a pool"
        # A file may name servers of other people, and keys, so a look contacts none of them.
        if URL.match(given):
            pool = given if "#" in given else f"{given}#{ALL}"
            kind = f"has {first_of([each.name for each in read_pool(pool)], 20)}"
        print(visible(f"{pool} {kind}. Next, with the questions:"))
        print(visible(f"  advisor select --pool {shlex.quote(pool)} --task TASK"))
        print("TASK is a task file, as `advisor init DATA` writes one, or a name that `advisor tasks` lists.")
    for task in tasks:
        name = read_definition(*find_task(task)).name
        print(visible(f"{task} is a task file ({name}). Next, with the models:"))
        print(visible(f"  advisor select --pool POOL --task {shlex.quote(task)}"))
        print("POOL is a file with a model in each line, the URL of a server, or demo.")


def _show_run(folder: Path) -> None:
    """Print what a run recommends, and the commands that use it."""
    from reports import write_report
    from reports.terminal import print_conclusion, print_next

    result, report = Run.open(folder).result, folder / "report.html"
    print_conclusion(result)
    print_next(result, report if report.is_file() else write_report(folder))
