"""The options of the commands: what they refuse, keep and show follows from their fields."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from advisor.cli import COMMANDS, app, main
from advisor.commands.command_line import with_options
from advisor.options.finished_run import (
    CheckOptions,
    CompareOptions,
    EvaluateOptions,
    ExportOptions,
    JudgeRunOptions,
    ReportOptions,
    RunOptions,
    ServeOptions,
)
from advisor.options.new_run import DoctorOptions, InitOptions, LabelOptions, ProfileOptions, SelectOptions
from advisor.options.option import Options, Panel, options_of
from ensemble.errors import InputError

RUN = Path("runs/x")
REQUIRED: dict[type[Options], dict[str, Any]] = {
    SelectOptions: {},
    ProfileOptions: {},
    DoctorOptions: {},
    EvaluateOptions: {"run": RUN},
    CheckOptions: {"run": RUN},
    CompareOptions: {"models": ("a", "b")},
    RunOptions: {"run": "runs/x", "prompt": "?"},
    ServeOptions: {"run": "runs/x"},
    ExportOptions: {"run": RUN, "folder": RUN},
    InitOptions: {"data": ("a.csv",)},
    LabelOptions: {},
    JudgeRunOptions: {"run": RUN},
    ReportOptions: {"run": RUN},
}


def refused(options: type[Options], **given: Any) -> str:
    with pytest.raises(InputError) as error:
        options(**{**REQUIRED[options], **given})
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "given", "says"),
    [
        (SelectOptions, {"limit": 0}, "--limit 0: give at least 1 question"),
        (SelectOptions, {"seed": -1}, "--seed -1: give 0 or more"),
        (CheckOptions, {"min_gain": -1.0}, "--min-gain -1: give points from 0 to 100"),
        (SelectOptions, {"max_gap": 101}, "--max-gap 101: give points from 0 to 100"),
        (SelectOptions, {"max_length_ratio": math.inf}, "--max-length-ratio inf: give a ratio of at least 1"),
        (SelectOptions, {"max_models": 10**19}, "--max-models 1e+19: give at least 1, 1e+18 at most"),
        (SelectOptions, {"max_voters": 2}, "--max-voters 2: a vote needs 3 models; give 3 or more, or 1 for no vote"),
        (CompareOptions, {"confidence": 1.0}, "--confidence 1: give a number above 0 and below 1, for example 0.95"),
        (SelectOptions, {"k": 0}, "--k 0: give at least 1"),
        (SelectOptions, {"dtype": "float8"}, "--dtype float8: not one of auto, float32"),
        (CompareOptions, {"margin": 0.0}, "--margin 0: give points above 0, up to 100"),
        (RunOptions, {"top_p": 0.0}, "--top-p 0: give a number above 0, up to 1"),
        (ServeOptions, {"port": 65536}, "--port 65536: give a number from 0 to 65535"),
        (ReportOptions, {"form": "pdf"}, "--format pdf: not one of html, md, csv"),
        (ProfileOptions, {"ray_address": "a:1"}, "--ray-address a:1 has no effect without --engine ray"),
        (
            SelectOptions,
            {"until_sure": True, "no_verify": True},
            "--until-sure has no effect with --no-verify; leave out",
        ),
        (CompareOptions, {"fail_if_unsure": True}, "--fail-if-unsure has no effect without --fail-if-worse"),
        (CompareOptions, {"models": ()}, "nothing to compare"),
        (ExportOptions, {"public": True}, "--public has no effect without --push; add --push, or leave out --public"),
        (RunOptions, {"models": ("a",)}, "give a run folder or --models, not both"),
        (RunOptions, {"run": None, "prompt": None}, "the prompt is missing"),
        (ServeOptions, {"run": None}, "give a run folder, or --models for each model, the primary first"),
    ],
)
def test_a_value_out_of_range_or_without_an_effect_is_refused(
    options: type[Options], given: dict[str, Any], says: str
) -> None:
    assert refused(options, **given).startswith(says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["select", "--limit", "x"], "--limit x: give a whole number"),
        (["select", "--max-gap", "1e"], "--max-gap 1e: give a number"),
        (
            ["compare", "a", "b", "--fail-if-worse"],
            "Option '--fail-if-worse' requires an argument; see advisor compare -",
        ),
        (["nothing"], "No such command 'nothing'; see advisor --help"),
        (["selekt"], "No such command 'selekt'. Did you mean 'select'? See advisor --help"),
    ],
)
def test_a_wrong_command_line_is_refused_in_plain_words(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["advisor", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"advisor: {says}")


MODELS_ONLY = {
    "limit": 20,
    "data": Path("data"),
    "pool": "demo",
    "judge": ("m",),
    "batch_size": 2,
    "dry_run": True,
}


@pytest.mark.parametrize(("name", "value"), MODELS_ONLY.items())
def test_an_option_for_models_is_refused_where_none_runs(name: str, value: object) -> None:
    flag = options_of(SelectOptions)[name].flag
    no_effect = f"{flag} has no effect with --logs, which gives responses instead of models; leave out one of them"
    assert refused(SelectOptions, logs=("log.jsonl",), **{name: value}) == no_effect
    assert refused(SelectOptions, scores=Path("s.json"), **{name: value}).startswith(
        f"{flag} has no effect with --scores, which gives numbers instead of models"
    )
    # --limit, too, draws from the questions of logs in `check`, and changes nothing in `select`.
    if name in {"judge", "batch_size", "data"}:
        assert refused(CheckOptions, logs=("log.jsonl",), **{name: value}) == no_effect


LOGS_ONLY = {"metric": "number", "column": ("question=q",), "score_map": "yes=1"}


@pytest.mark.parametrize(("name", "value"), LOGS_ONLY.items())
def test_an_option_of_logs_is_refused_without_logs(name: str, value: object) -> None:
    flag = options_of(SelectOptions)[name].flag
    says = f"{flag} is for --logs, and has no effect without it; add --logs, or leave out {flag}"
    assert refused(SelectOptions, pool="demo", **{name: value}) == says
    assert refused(CheckOptions, **{name: value}) == says


@pytest.mark.parametrize("name", ["seed", "only", "min_gain", "max_voters", "task"])
def test_an_option_about_answers_is_refused_with_numbers_alone(name: str) -> None:
    value = {"only": "a*", "task": "gsm8k"}.get(name, 1)
    says = "has no effect with --scores, which gives numbers instead of models"
    assert says in refused(SelectOptions, scores=Path("s.json"), **{name: value})
    SelectOptions(logs=("log.jsonl",), **{name: value})


def test_with_models_by_hand_the_only_argument_is_the_prompt() -> None:
    options = RunOptions(models=("a",), run="What?")
    assert (options.run, options.prompt) == (None, "What?")


@pytest.mark.parametrize("options", REQUIRED)
def test_each_field_is_an_option_with_a_flag_of_its_own_and_none_is_refused_that_is_not_given(
    options: type[Options],
) -> None:
    options(**REQUIRED[options])
    declared = options_of(options)
    assert list(declared) == [field.name for field in dataclasses.fields(options)]
    assert len({each.flag for each in declared.values()}) == len(declared)
    assert all(each.help.endswith(".") for each in declared.values())
    for each in declared.values():
        if each.needs is not None:
            assert each.needs[0] in declared


def test_every_command_has_its_parameters_from_its_options() -> None:
    for name, options in COMMANDS.items():
        made = inspect.signature(with_options(name, options)).parameters
        assert [each for each in made if each != "help_all"] == list(options_of(options))
        assert callable(getattr(import_module(f"advisor.commands.{name}"), name))
    # These have no options.
    assert len(app.registered_commands) == len(COMMANDS) + len(["tasks", "methods", "schema", "lm-eval"])


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What a command prints."""
    monkeypatch.setattr("sys.argv", ["advisor", *arguments])
    with suppress(SystemExit):
        main()
    return "".join(capsys.readouterr())


@pytest.mark.parametrize("command", ["select", "serve", "compare"])
def test_the_help_has_its_options_below_headings_in_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys, monkeypatch, command, "--help-all")
    headings = [line[:-1] for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings[-1] == "Files and output" and len(headings) > 3
    assert headings == [each for each in ("Arguments", *get_args(Panel)) if each in headings]
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search("<(list|str|int|float|Path)", text)

    # An option has the heading of its class also where a command changes it.
    panels = {options: options_of(options) for options in (SelectOptions, CheckOptions)}
    assert panels[CheckOptions]["limit"].panel == panels[SelectOptions]["limit"].panel == "Models and questions"
    assert None not in {each.panel for each in panels[SelectOptions].values()}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_shows_what_most_people_need_and_the_rest_on_request(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {each.flag for each in options_of(COMMANDS[command]).values() if not each.is_argument}
    assert len(flags) <= 45
    shown = printed(capsys, monkeypatch, command, "--help")
    assert len(shown.splitlines()) <= 60
    assert len(re.findall("^  --", shown, re.MULTILINE)) <= 16
    everything = printed(capsys, monkeypatch, command, "--help-all") if "--help-all" in shown else shown
    assert flags <= set(re.findall(r"--[\w-]+", everything))


def test_a_shell_and_a_near_name_know_the_options_that_the_help_hides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--seed" not in printed(capsys, monkeypatch, "select", "--help")
    assert "--seed" in printed(capsys, monkeypatch, "select", "--sed", "1")
    group: Any = typer.main.get_command(app)
    context = group.make_context("advisor", ["select"])
    found = group.commands["select"].shell_complete(context, "--see")
    assert [each.value for each in found] == ["--seed"]


def test_the_first_screen_has_each_description_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = " ".join(printed(capsys, monkeypatch, "--help").split())
    for options in COMMANDS.values():
        assert options.__doc__ in words


def test_a_path_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/me")
    options = SelectOptions(pool="~/models.txt", task="~/t.yaml", out=Path("~/runs/x"), only="~a*")
    assert (options.pool, options.task, options.only) == ("/me/models.txt", "/me/t.yaml", "~a*")
    assert (options.out, RunOptions(run="~/r", prompt="~/r?").run) == (Path("/me/runs/x"), "/me/r")


def test_a_run_keeps_the_options_that_change_figures() -> None:
    kept = SelectOptions(pool="demo", task="x", limit=3, quiet=True, out=Path("o"), batch_size=2).stored_settings()
    assert (kept["pool"], kept["limit"], kept["seed"]) == ("demo", 3, 0)
    means = {"out", "force", "dry_run", "cache_dir", "as_json", "quiet", "batch_size"}
    allowed = {"allow_code_execution", "trust_remote_code"}
    of_select = options_of(SelectOptions)
    assert {name for name, each in of_select.items() if not each.is_setting} == means | allowed
    assert not kept.keys() & (means | allowed)


def test_models_that_the_run_does_not_know_load_as_in_a_run_without_options() -> None:
    options = CheckOptions(run=Path("r"), dtype="bfloat16", batch_size=3)
    assert options.of_select(k=4) == SelectOptions(dtype="bfloat16", batch_size=3, k=4)
