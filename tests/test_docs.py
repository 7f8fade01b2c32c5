"""The site and the README: no link leads nowhere, nothing comes from elsewhere, and every example runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
import typer
from pages import Shell, blocks, warm_shell
from report_browser import browser, resize
from sharing import demo_cache

import ensemble
from advisor.cli import app
from advisor.statistics import questions_needed
from advisor.tasks import list_tasks
from benchmarks import _pages
from ensemble.methods import list_methods
from reports.sections.models import MEASURES

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


# --- Links of the README and of the other files for people who read the code ---


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


# --- Imports ---


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
    assert len(systems) > 30
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
    said = [row for row in rows("report.md") if re.match(r"\d+ points$", row[0])]
    assert len(said) == 3
    for gain, needed in said:
        assert f"{questions_needed(int(gain.split()[0]), discordance=0.2):,}" == needed


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
def test_examples_of_the_quick_start_run(run_demo: Path) -> None:
    assert (run_demo / "report.html").is_file()


def test_the_readme_has_the_gains_of_the_demo(run_demo: Path) -> None:
    result = json.loads((run_demo / "result.json").read_text(encoding="utf-8"))
    found = re.search(r"gain is (.*?\))", result["advice"]["recommendation"]["text"])
    assert found is not None
    assert found[1] in QUICK_START.read_text(encoding="utf-8")


def test_the_page_of_files_has_every_key_that_a_run_wrote(run_demo: Path, site: Path) -> None:
    result = json.loads((run_demo / "result.json").read_text(encoding="utf-8"))
    keys = {
        *result,
        *result["candidates"][0],
        *result["task"],
        *result["rules"],
        *result["advice"],
        *result["ensemble"],
    }
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
