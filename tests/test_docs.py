"""The site and the README: no link leads nowhere, nothing comes from elsewhere, and every example runs or could run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import matplotlib
import pytest
import typer
from pages import Shell, blocks, warm_shell
from pools import SELECT, Place
from report_browser import browser, resize
from sharing import demo_cache

import ensemble
from advisor.cli import app
from advisor.commands.look import is_looked_at
from advisor.models.pool_file import read_pool
from advisor.run.folder import Run
from advisor.run.sentences import summary
from advisor.statistics import questions_needed
from advisor.tasks import list_tasks
from advisor.tasks.load import find_task
from advisor.tasks.task_file import read_definition
from benchmarks import _pages
from ensemble.common.text import memory
from ensemble.methods import list_methods, option_fields
from ensemble.models.memory import need_of
from reports.sections.models import MEASURES

pytest_plugins = ["pools"]

ROOT = Path(__file__).resolve().parents[1]
QUICK_START = ROOT / "README.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def build_site(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site with the command of `make docs`: options of another one may keep mkdocs from counting warnings."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    command = re.search(r"^docs:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert command is not None
    assert "mkdocs build" in command[1]
    return subprocess.run(
        f"{command[1].strip().replace('$(BIN)/', f'{sys.executable} -m ')} --site-dir {folder}",
        shell=True,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build_site(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_site_is_built_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()


def test_site_with_links_that_lead_nowhere_is_not_built(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for package in ("advisor", "ensemble", "reports"):
        (tmp_path / package).symlink_to(ROOT / package)
    page = tmp_path / "docs" / "limits.md"
    links = "[A link](reference/commands.md#no-such-heading), [a link](no-such-page.md)"
    page.write_text(f"{page.read_text(encoding='utf-8')}\n{links}.\n", encoding="utf-8")
    done = build_site(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert ["reference/commands.md" in line for line in sorted(warnings)] == [False, True]


@pytest.mark.browser
def test_the_search_works_where_the_site_is_opened_from_its_folder(site: Path) -> None:
    with browser() as window:
        resize(window, 1400)
        window.get((site / "index.html").as_uri())
        field = window.find_element("css selector", "input.md-search__input")
        window.execute_script("arguments[0].focus()", field)
        field.send_keys("vote")
        deadline = time.monotonic() + 30
        while not (found := window.find_elements("css selector", ".md-search-result__link")):
            assert time.monotonic() < deadline, window.get_log("browser")
            time.sleep(0.1)
        assert {Path(link.get_attribute("href").partition("?")[0]).parent.name for link in found} >= {site.name}


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe|source|video|audio|embed)[^>]*\bsrc=[\"']?https?:|<link[^>]*\bhref=[\"']?https?:"
        r"|<object[^>]*\bdata=[\"']?https?:|url\([\"']?https?:|@import [\"']https?:"
    )
    pages = [*site.rglob("*.html"), *site.glob("style/*.css")]
    assert [str(page.relative_to(site)) for page in pages if loading.search(page.read_text(encoding="utf-8"))] == []


def slug(heading: str) -> str:
    """The anchor of a heading where Markdown is shown beside the code."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "advisor/demo/README.md"])
def test_links_lead_to_files_and_headings_that_are_there(name: str) -> None:
    page = ROOT / name
    # In Markdown, at its end, and in HTML.
    forms = r"(?:\]\(|^\[[^]]+\]: |\b(?:src|href)=[\"'])(?!https?:)([^)#\s\"']*)#?([^)\s\"']*)"
    links = re.findall(forms, page.read_text(encoding="utf-8"), re.MULTILINE)
    for target, anchor in links:
        file = page.parent / target if target else page
        assert file.exists(), f"{name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{name} links to {target}#{anchor}"


def test_every_public_name_of_ensemble_can_be_imported() -> None:
    for name in ensemble.__all__:
        assert getattr(ensemble, name).__name__ == name


def test_pages_and_notebooks_import_from_no_deeper_module() -> None:
    deep = re.compile(r"\b(?:from|import) (?:advisor(?!\.(?:tasks|logs) import)|ensemble)\.\w+")
    files = [*PAGES, *(ROOT / "notebooks").glob("*.ipynb")]
    assert [str(file.relative_to(ROOT)) for file in files if deep.search(file.read_text(encoding="utf-8"))] == []


# --- Tables that say what the code says ---


def rows(page: str) -> list[list[str]]:
    """The cells of all tables of a page, row by row."""
    return rows_of((ROOT / "docs" / page).read_text(encoding="utf-8"))


def rows_of(text: str) -> list[list[str]]:
    lines = text.splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]


def test_the_page_of_methods_has_every_method_as_the_registry_has_it() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## Which to take")[0]
    said = [row for row in rows_of(text) if len(row) == 3]
    for name, method in list_methods().items():
        assert [f"`{name}`", method.summary, method.when] in said
    assert sorted(row[0].strip("`") for row in said if row[0].startswith("`")) == sorted(list_methods())


def test_what_methods_need_and_cost_and_their_papers_are_said_of_every_method() -> None:
    for page, heading in (("methods.md", "## What they need and what they cost"), ("papers.md", "## Papers")):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        section = text.partition(heading)[2].partition("\n## ")[0]
        first = " ".join(re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE))
        assert sorted(re.findall(r"`([\w-]+)`", first)) == sorted(list_methods()), heading


def test_the_table_of_systems_has_every_method_and_no_empty_cell() -> None:
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").partition("\n## Systems of the papers\n")[2]
    systems = [row for row in rows_of(text.partition("\n## ")[0]) if row[0] not in ("system", "---")]
    assert len(systems) > 25
    assert [row for row in systems if len(row) != 4 or not all(row)] == []
    assert len({row[0] for row in systems}) == len(systems)
    # Some systems are a method with an option, which stands in the same cell.
    named = {name for row in systems for name in re.findall(r"`([\w-]+)`", row[2])}
    assert named >= list_methods().keys()


def test_the_page_of_tasks_has_every_task_and_metric() -> None:
    said = {name: row[1] for row in rows("tasks.md") for name in re.findall(r"`(\w+)`", row[0])}
    for task in list_tasks():
        assert f"`{task.metric}`" in said[task.name]
    first = [row for row in rows("tasks.md") if re.fullmatch(r"`\w+`(, `\w+`)*", row[1])]
    assert {name for row in first for name in re.findall(r"`(\w+)`", row[0])} == {task.name for task in list_tasks()}


def test_the_page_of_the_report_has_every_measure_of_a_pair() -> None:
    said = {row[1].strip("`"): row[0] for row in rows("report.md") if len(row) == 3}
    assert {measure.key: measure.title for measure in MEASURES}.items() <= said.items()


def test_the_page_of_the_report_has_the_questions_that_a_gain_needs() -> None:
    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    ((gain, needed),) = re.findall(r"A gain of (\d+) points of two systems that differ on a fifth .* takes (\d+)", page)
    assert questions_needed(int(gain), discordance=0.2) == int(needed)


@pytest.mark.parametrize("page", _pages.PAGES, ids=lambda page: page.name)
def test_measured_figures_are_those_that_the_benchmarks_kept(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- table: " in text or "<!-- results: " in text
    assert _pages.filled(text) == text


# --- Examples ---


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One for all pages; they share the cache of responses, and each has a folder of its own."""
    folder = tmp_path_factory.mktemp("examples")
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "MPLCONFIGDIR": matplotlib.get_cachedir(),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(demo_cache(tmp_path_factory)),
    }
    with warm_shell(folder, env) as warm:
        yield warm


@pytest.fixture(scope="module")
def run_demo(shell: Shell) -> Path:
    """The run folder that the quick start makes, and that other pages go on from."""
    run_page(shell, QUICK_START, None)
    return shell.folder / "README" / "runs" / "demo"


def run_page(shell: Shell, page: Path, demo: Path | None) -> None:
    """Run a page's examples in a folder that looks like the project's, as far as they see it."""
    folder = shell.folder / page.stem
    folder.mkdir()
    for name in ("advisor", "benchmarks", "docs"):
        (folder / name).symlink_to(ROOT / name)
    if demo is not None:
        shutil.copytree(demo, folder / "runs" / "demo")
    Shell(folder, shell.env, shell.python).run(page)


@pytest.mark.timeout(600)
def test_examples_of_the_quick_start_run_and_the_readme_has_their_gains(run_demo: Path) -> None:
    assert (run_demo / "report.html").is_file()
    readme = " ".join(re.sub(r" {2,}\d  .*", "", QUICK_START.read_text(encoding="utf-8")).split())
    assert summary(Run.open(run_demo).result)["Expected gain"] in readme


def test_the_page_of_files_has_every_key_that_a_run_wrote(run_demo: Path, site: Path) -> None:
    result = json.loads((run_demo / "result.json").read_text(encoding="utf-8"))
    parts = [result["candidates"][0], *(result[name] for name in ("task", "rules", "advice", "ensemble"))]
    keys = set(result).union(*parts)
    page = (site / "reference" / "files.html").read_text(encoding="utf-8")
    assert keys - set(re.findall(r"<code>(\w+)</code>", page)) == set()


def test_the_page_of_commands_has_every_option(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]  # a group has them
        section = page.partition(f'<h2 id="advisor-{name}"')[2].partition("<h2 ")[0]
        for option in (name for parameter in command.params for name in parameter.opts if name.startswith("--")):
            assert f"<code>{option}</code>" in section, f"advisor {name}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "README.md"])
def test_examples_of_a_page_run(name: str, shell: Shell, run_demo: Path) -> None:
    if not list(blocks((ROOT / name).read_text(encoding="utf-8"))):
        return
    run_page(shell, ROOT / name, run_demo)


REPRODUCE = ROOT / "docs" / "how-to" / "reproduce.md"


# --- Commands that cannot run here ---


def calls_of(page: Path, folder: Path) -> list[list[str]]:
    """The arguments of each call of ``advisor`` in the page's blocks that are not run; the shell expands them."""
    recorder = folder / "bin" / "advisor"
    recorder.parent.mkdir()
    recorder.write_text('#!/bin/sh\nfor each; do printf "%s\\0" "$each"; done >> "$CALLS"; printf "\\n" >> "$CALLS"\n')
    recorder.chmod(0o755)
    for name in ("pip", "grep"):
        (recorder.parent / name).symlink_to("/bin/true")
    found = list(blocks(page.read_text(encoding="utf-8")))
    for block in found:
        if block.file is not None:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.code, encoding="utf-8")
    # Nothing else is on the path, so that no other command of a page runs.
    env = {"PATH": str(recorder.parent), "CALLS": str(folder / "calls")}
    for block in found:
        if block.mark == "not run" and re.search(r"^ *(advisor|compare) ", block.code, re.MULTILINE):
            bash = ["/bin/bash", "-euo", "pipefail", "-c", block.code]
            subprocess.run(bash, cwd=folder, env=env, check=True, timeout=60)
    lines = (folder / "calls").read_text(encoding="utf-8").splitlines() if (folder / "calls").exists() else []
    return [line.split("\0")[:-1] for line in lines]


def parsed(call: list[str]) -> dict[str, object]:
    """The options of a call by parameter name; an unknown one is an error."""
    group = typer.main.get_command(app)
    if is_looked_at(call[0]):  # of files that are not here
        return {}
    if call[0].startswith("--"):  # of the command without a subcommand; parsing it would do what it says
        assert any(call[0] in option.opts for option in group.params)
        return {}
    name, command, rest = group.resolve_command(click.Context(group), call)  # type: ignore[attr-defined]  # a group
    return {**command.make_context(name, rest).params, "command": name}


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- not run" in page.read_text(encoding="utf-8")])
def test_commands_that_are_not_run_have_only_options_that_exist(page: Path, tmp_path: Path) -> None:
    for call in calls_of(page, tmp_path):
        parsed(call)


def test_the_commands_name_tasks_methods_settings_and_models_that_exist(tmp_path: Path) -> None:
    calls = [parsed(call) for call in calls_of(REPRODUCE, tmp_path)]
    assert len(calls) > 50
    made: dict[object, set[str]] = {}
    for given in calls:
        path, variant = find_task(str(given["task"]))
        read_definition(path, variant)
        if given["command"] == "select":
            made[given["out"]] = {entry.name for entry in read_pool(str(tmp_path / str(given["pool"])))}
            continue
        # A run folder comes from a command before.
        assert set(str(given["members"]).split(",")) <= made[given["run"]]
        methods = str(given["methods"]).split(",")
        assert set(methods) <= list_methods().keys()
        for setting in given["settings"] or ():  # type: ignore[attr-defined]  # a list
            method, option = setting.partition("=")[0].split(".")
            assert method in methods
            assert option in {field.name for field in option_fields(method)}


def test_each_line_of_the_pools_has_a_revision(tmp_path: Path) -> None:
    calls_of(REPRODUCE, tmp_path)
    entries = [entry for file in sorted(tmp_path.glob("table*.txt")) for entry in read_pool(str(file))]
    assert len(entries) == 10
    assert {json.dumps(getattr(entry.checkpoint, "revision", None)) for entry in entries} == {'"main"'}


ON_A_GPU = (ROOT / "docs" / "how-to" / "on-a-gpu.md").read_text(encoding="utf-8")


def test_the_refusal_on_the_page_is_what_the_program_prints(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (quoted,) = re.findall(r"^advisor: models\.txt:1: .*", ON_A_GPU, re.MULTILINE)
    place.task()
    place.pool(f"{models / 'alpha'} name=Qwen2-7B-Instruct", str(models / "beta"))
    # The sizes of a 7B model and of a GPU with 12 GB, in place of those of a tiny model and of this machine.
    count, values = SIZES["7B"]
    seven = need_of(count, 2 * count, values, "bfloat16")  # type: ignore[arg-type]
    monkeypatch.setattr("advisor.models.fit.need_of_model", lambda *_: seven)
    monkeypatch.setattr("advisor.models.fit.free_on", lambda _: 12_000_000_000)
    monkeypatch.setattr("advisor.models.fit.resolve_device", lambda _: "cuda")
    monkeypatch.setattr("advisor.jobs.session.check_pool", lambda *_, **__: None)
    assert place.refused(*SELECT) == quoted


def config(**values: int) -> object:
    from transformers import LlamaConfig

    return LlamaConfig(dtype="bfloat16", **values)


SIZES = {
    "7B": (
        7_615_616_512,
        config(
            hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, vocab_size=152_064
        ),
    ),
    "70B": (
        70_553_706_496,
        config(
            hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8, vocab_size=128_256
        ),
    ),
}
KINDS = {"bfloat16": None, "8 bits": "8bit", "4 bits": "4bit"}


def needs(model: str, kind: str) -> str:
    """A row of the table, computed."""
    count, values = SIZES[model]
    need = need_of(count, 2 * count, values, "bfloat16", KINDS[kind])  # type: ignore[arg-type]
    in_use = memory(need.total(64, 1000))
    return f"| {model} | {kind} | {memory(need.weights)} | {in_use} | {memory(2 * count)} |"


def test_the_table_is_what_the_estimate_says() -> None:
    assert re.findall(r"^\| 70?B .*$", ON_A_GPU, re.MULTILINE) == [
        needs(model, kind) for model in SIZES for kind in KINDS
    ]


EXAMPLE = ROOT / "docs" / "how-to" / "logs.md"
LOG = ROOT.parent / "shared" / "pools" / "math-l5.jsonl.xz"


@pytest.mark.parametrize("more", ["", ",Qwen2.5-7B-Instruct"])
def test_the_real_example_says_what_the_command_recommends(more: str, place: Place) -> None:
    if not LOG.is_file():
        pytest.skip("../shared/pools/math-l5.jsonl.xz is not here")
    page = EXAMPLE.read_text(encoding="utf-8")
    block = next(block for block in blocks(page) if LOG.name in block.code)
    program, *command = shlex.split(block.code.replace("\\\n", " "))
    assert program == "advisor"
    command[command.index("--only") + 1] += more
    # With an absolute path of the log.
    arguments = [str(LOG) if argument.endswith(LOG.name) else argument for argument in command]
    ran = place.advisor(*arguments, "--quiet", "--json")
    assert ran.status == 0, ran.err
    result = json.loads(ran.out)
    assert result["advice"]["recommendation"]["text"] in " ".join(page.split())
    # The table has the strategies of the first command.
    for each in [] if more else result["strategies"]:
        name, (low, high) = each["strategy"].replace("_", " "), each["expected_gain_ci"]
        gain = "–" if name == "single" else f"{each['expected_gain']:+.1f} ({low:+.1f} to {high:+.1f})"
        calls = f"{each['calls_per_question']:.1f}"
        assert re.search(rf"\| {name} \| {len(each['members'])} \| [0-9.]+ \| {re.escape(gain)} \| {calls} \|", page)
