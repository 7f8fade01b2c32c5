"""Methods, metrics and log formats of other packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import matplotlib
import pytest
from pages import Shell, blocks, warm_shell
from tiny import tiny_model, tokenizer_named

from advisor.cli import main
from advisor.commands.evaluate import Evaluator, choosing
from advisor.jobs.played import play_with_models
from advisor.logs import sources
from advisor.logs.join import join_logs
from advisor.models.profiler import Profiler
from advisor.models.run_config import check_decodes
from advisor.records import Answer, Profile
from advisor.tasks import load_task, metrics
from ensemble import Ensemble, methods
from ensemble.errors import InputError
from ensemble.methods import get_method, get_module, list_methods, make_options
from ensemble.models.load import member_of
from ensemble.models.spec import EnsembleSpec

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how-to" / "plug-ins.md"
METHOD = 'from ensemble import Method\nMETHOD = Method(level="response", summary="s", when="w")\ndef make(*a): pass\n'
KEPT = (
    methods.plugins,
    methods.list_methods,
    metrics.plugins,
    metrics.metric_names,
    metrics.get_metric,
    metrics.runs_code,
    sources.plugins,
)


class Install(Protocol):
    """Puts a package with one plug-in on the path; `code` is the module's text, None for a module that is missing."""

    def __call__(self, kind: str, name: str, code: str | None, package: str = "house") -> Path: ...


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    known = set(sys.modules)

    def put(kind: str, name: str, code: str | None, package: str = "house") -> Path:
        folder, module = tmp_path / package, f"{package}_{len(sys.path)}"
        info = folder / f"{package}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[unite_advisor.{kind}s]\n{name} = {module}\n")
        if code is not None:
            (folder / f"{module}.py").write_text(code)
        monkeypatch.syspath_prepend(folder)
        return folder / f"{module}.py"

    for function in KEPT:
        function.cache_clear()
    yield put
    for function in KEPT:
        function.cache_clear()
    for name in set(sys.modules) - known:
        if name.startswith(("house", "other")):
            del sys.modules[name]


def test_a_method_is_listed_with_its_package_and_is_not_imported(install: Install) -> None:
    file = install("method", "ours", METHOD)
    method = list_methods()["ours"]
    assert (method.level, method.package) == ("response", "house 1.5")
    assert file.stem not in sys.modules
    assert callable(get_module("ours").make)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (None, "it is not a module with a Python file"),
        ("def make(*a): pass\n", "has no METHOD = Method("),
        ("METHOD = Method(level=LEVEL, summary='s', when='w')\n", "malformed node"),
        ("METHOD = Method(level='word', summary='s', when='w')\n", "'word' is not one of token, span, response"),
        ("METHOD = Method(level='token')\n", "missing"),
        ("METHOD = (\n", "never closed"),
    ],
)
def test_a_method_that_is_not_declared_is_named_and_the_others_are_listed(
    code: str | None, reason: str, install: Install, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("method", "ours", code)
    monkeypatch.setattr(sys, "argv", ["advisor", "methods"])
    main()
    out, err = capsys.readouterr()
    assert out.startswith("unite ")
    assert "\nours " not in out
    assert re.fullmatch(
        r"advisor: method ours of house 1\.5 \(entry point unite_advisor\.methods: ours = house_\d+\) cannot be used: "
        rf".*{re.escape(reason)}.*; uninstall house, or correct it\n",
        err,
    )
    with pytest.raises(InputError, match=r"^method ours of house 1\.5 "):
        check_decodes("ours")


@pytest.mark.parametrize(
    ("target", "code", "reason"),
    [
        ("no-module at all", "", "its module cannot be found"),
        ("house_broken.inner", "raise OSError('no library')", "its module cannot be found: OSError: no library)"),
    ],
)
def test_an_entry_point_whose_module_cannot_be_found_is_one_line(
    target: str, code: str, reason: str, install: Install
) -> None:
    folder = install("method", "ours", METHOD).parent
    (folder / "house_broken").mkdir()
    (folder / "house_broken" / "__init__.py").write_text(code)
    (entries,) = folder.glob("*/entry_points.txt")
    entries.write_text(f"[unite_advisor.methods]\nours = {target}\n")
    assert "ours" not in list_methods()
    with pytest.raises(InputError, match=rf"^method ours of house 1\.5 .*{re.escape(reason)}"):
        get_method("ours")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("average", "unite-advisor has a built-in one of this name"),
        ("gac_threshold", "unite-advisor has a built-in one of this name"),
        ("our.method", "a name has only letters, digits, - and _"),
    ],
)
def test_a_name_that_cannot_be_taken_is_refused_only_where_it_is_used(install: Install, name: str, reason: str) -> None:
    install("method", name, METHOD)
    assert {method.package for method in list_methods().values()} == {None}
    for use in (get_method, get_module, check_decodes):
        with pytest.raises(InputError, match=rf"^method {name} of house 1\.5 .* cannot be used: {reason}; uninstall "):
            use(name)


def test_a_name_of_two_packages_is_refused(install: Install) -> None:
    install("method", "ours", METHOD)
    install("method", "ours", METHOD, package="other")
    with pytest.raises(
        InputError, match=r"^method ours of (house|other) 1\.5 .*: (house|other) 1\.5 has one of this name"
    ):
        get_method("ours")


@pytest.mark.parametrize(
    ("kind", "load"), [("method", get_module), ("metric", metrics.get_metric), ("log_format", sources.get_format)]
)
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("", "it has no "),
        ("raise RuntimeError('none\\nand more')\n", r"cannot be loaded \(RuntimeError: none\); uninstall house"),
    ],
)
def test_a_module_that_raises_or_lacks_what_its_kind_needs_is_one_line(
    kind: str, load: Any, code: str, reason: str, install: Install
) -> None:
    install(kind, "ours", METHOD.partition("def")[0] + code)
    with pytest.raises(InputError, match=rf"^{kind.replace('_', ' ')} ours of house 1\.5 .*{reason}"):
        load("ours")


def write_task(folder: Path, metric: str) -> Path:
    (folder / "q.jsonl").write_text('{"q": "1 + 1", "a": "2"}\n{"q": "1 + 2", "a": "3"}\n')
    data = "data: {dev: q.jsonl, held_out: q.jsonl}"
    (folder / "t.yaml").write_text(f"name: t\n{data}\nprompt: '{{{{q}}}}'\nreference: '{{{{a}}}}'\nmetric: {metric}\n")
    return folder / "t.yaml"


def test_a_metric_that_cannot_be_loaded_ends_only_its_tasks(install: Install, tmp_path: Path) -> None:
    install("metric", "ours", "raise ImportError('no')\n")
    assert len(load_task(write_task(tmp_path, "number")).examples) == 1
    with pytest.raises(InputError, match=r"^metric ours of house 1\.5 .* cannot be loaded \(ImportError: no\)"):
        load_task(write_task(tmp_path, "ours"))


def test_a_metric_is_named_with_its_package_where_metrics_are_listed(install: Install, tmp_path: Path) -> None:
    install("metric", "ours", "")
    with pytest.raises(InputError, match=r"choose among bleu, .*, number_comma, ours \(house 1\.5\), pass_at_1, .*$"):
        load_task(write_task(tmp_path, "none_such"))


def test_a_log_format_that_cannot_be_loaded_ends_no_reading_of_others(install: Install, tmp_path: Path) -> None:
    install("log_format", "ours", "raise ImportError('no')\n")
    log = tmp_path / "pool.jsonl"
    log.write_text('{"id": 1, "models": {"a": ["2", 1, 1]}}\n')
    notes: list[str] = []
    assert [source.format for source in sources.find_sources([str(log)], notes)] == ["pool"]
    assert [note.partition(" (")[0] for note in notes] == ["log format ours of house 1.5"]


@pytest.mark.parametrize("part", ["recognise", "read"])
def test_a_log_format_that_raises_ends_no_reading_of_others(part: str, install: Install, tmp_path: Path) -> None:
    code = {
        "recognise": "def recognise(*a): {}['form']\n",
        "read": "def recognise(files, notes):\n"
        "    return [LogSource('ours', file.path) for file in files if file.path.suffix == '.txt']\n",
    }[part]
    install(
        "log_format", "ours", f"from advisor.logs import LogSource\nSUMMARY = 's'\n{code}def read(*a): {{}}['form']\n"
    )
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "other.txt").write_text("a text")
    (tmp_path / "logs" / "pool.jsonl").write_text(
        "".join(f'{{"id": {n}, "models": {{"a": ["2", 1, 1], "b": ["3", 0, 1]}}}}\n' for n in range(3))
    )
    joined = join_logs([str(tmp_path / "logs")])
    assert set(joined.profiles) == {"a", "b"}
    problem = "log format ours (house 1.5): KeyError: 'form'; correct the package, or uninstall it"
    assert sum(note.startswith(problem) for note in joined.notes) == 1


@pytest.mark.parametrize("level", ["token", "response"])
def test_a_method_whose_make_raises_is_one_line(level: str, install: Install, tmp_path: Path) -> None:
    install("method", "ours", METHOD.replace("response", level).replace("pass", "{}['form']"))
    members = [member_of(tiny_model(tokenizer_named("bytes"), 0), tokenizer_named("bytes"), name="a")]
    with pytest.raises(InputError, match=r"^method ours \(house 1\.5\): KeyError: 'form'"):
        if level == "token":
            Ensemble(members, method="ours", cache_dir=tmp_path)
        made = object.__new__(Evaluator)
        made._settings = {"ours": {}}
        made._responder("ours")


@pytest.mark.parametrize(
    ("taken", "line"),
    [
        ("2", "question 0: it chose 2; it must give the number of a response, from 0 to 1, or a text"),
        ("-1", "question 0: it chose -1; it must give"),
        ("True", "question 0: it chose True; it must give"),
        ("None", "question 0: it chose None; it must give"),
        ("{}['form']", "KeyError: 'form'"),
    ],
)
def test_a_choice_that_cannot_be_taken_names_the_method_and_its_package(
    taken: str, line: str, install: Install, tmp_path: Path
) -> None:
    chooser = f"class Chooser:\n    def choose(self, *a): return {taken}\n"
    install("method", "ours", METHOD.replace("pass", "return Chooser()") + chooser)
    task = load_task(write_task(tmp_path, "number"))
    (example,) = task.examples
    responses = {name: Profile(name, (Answer(example.id, "2", "2", 1.0, "eos"),)) for name in "ab"}
    flow = partial(choosing, "ours", get_module("ours").make(), 2)
    line = line.replace("question 0", f"question {example.id}")
    with pytest.raises(InputError, match=rf"^method ours \(house 1\.5\): {re.escape(line)}"):
        play_with_models(None, "ab", flow, task, responses, 0, "ours")


def test_an_option_of_a_method_is_checked_by_its_annotation(install: Install) -> None:
    code = (
        "from __future__ import annotations\n"
        + METHOD
        + "from dataclasses import dataclass\n"
        + "@dataclass(frozen=True)\nclass Options:\n    depth: int = 1\n    rest: dict = None\n"
    )
    install("method", "ours", code)
    assert make_options("ours", {"depth": 2, "rest": {}}).depth == 2
    with pytest.raises(InputError, match=r"^method ours: depth 1\.5: it should be a whole number$"):
        make_options("ours", {"depth": 1.5})


def test_an_annotation_that_cannot_be_read_is_not_checked(install: Install) -> None:
    code = METHOD + "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Options:\n    path: 'Gone' = 1\n"
    install("method", "ours", code)
    assert make_options("ours", {"path": "a"}).path == "a"


def test_stored_responses_of_a_method_belong_to_a_version_of_its_package(install: Install) -> None:
    install("method", "ours", METHOD)
    profiler = object.__new__(Profiler)
    keys = [profiler.key((), EnsembleSpec((), name, 10)) for name in ("ours", "unite")]
    assert [key.get("package") for key in keys] == ["house 1.5", None]


# --- The example of the page ---


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A folder with the files of the page, and a shell in which its package is installed."""
    folder = tmp_path_factory.mktemp("example")
    (folder / "advisor").symlink_to(ROOT / "advisor")
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.file is not None:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.code, encoding="utf-8")
    installed = folder / "installed"
    # Not into the environment of the tests, and with the build backend that is there: without network.
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--target", str(installed))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *options, "./house"], cwd=folder, check=True, capture_output=True)
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "MPLCONFIGDIR": matplotlib.get_cachedir(),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)]),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    with warm_shell(folder, env) as shell:
        yield shell


def run(shell: Shell, *command: str) -> str:
    """What a command writes to standard output in the folder of the page."""
    done = subprocess.run(command, cwd=shell.folder, env=shell.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_package_of_the_page_is_installed_and_used(example: Shell) -> None:
    printed = {}
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        for command in block.code.splitlines() if block.language == "bash" else ():
            if not command.startswith("pip "):
                printed[command] = run(example, "bash", "-c", command)
    assert len(printed) == 5
    assert re.search(r"^largest +token .* \(house 1\.0\)$", printed["advisor methods"], re.MULTILINE)

    runs = example.folder / "runs"
    result = json.loads((runs / "sums" / "result.json").read_text(encoding="utf-8"))
    assert result["task"]["metric"] == "near"
    assert "|house:1.0" in result["task"]["signature"]
    assert result["provenance"]["versions"]["house"] == "1.0"
    evaluation = json.loads((runs / "sums" / "evaluation.json").read_text(encoding="utf-8"))
    assert {entry["method"]: entry["left_out"] for entry in evaluation["methods"][:2]} == {
        "unite": None,
        "largest": None,
    }
    assert evaluation["provenance"]["versions"]["house"] == "1.0"

    quiz, again = (json.loads((runs / name / "result.json").read_text(encoding="utf-8")) for name in ("quiz", "again"))
    assert [log["format"] for log in quiz["provenance"]["logs"]] == ["quiz"]
    assert quiz["provenance"]["versions"]["house"] == "1.0"
    assert again["task"]["metric"] == "near"


@pytest.mark.slow
def test_the_method_of_the_page_takes_the_largest_probability(example: Shell) -> None:
    code = (
        "import json\n"
        "from ensemble import Ensemble\n"
        "folder = 'advisor/demo/models/'\n"
        "e = Ensemble.from_pretrained([folder + 'terse-neox', folder + 'terse-mistral'], method='largest')\n"
        "prompt = 'Question: Ann has 12 pens. She buys 5 more. How many pens does Ann have now?\\nAnswer:'\n"
        "(g,) = e.generate([prompt], stop=['\\n'], max_new_tokens=8, trace=True)\n"
        "print(json.dumps([[(c.mean, c.probabilities) for c in step.candidates] for step in g.trace]))\n"
    )
    steps = json.loads(run(example, *example.python, "-c", code))
    assert len(steps) > 3
    for step in steps:
        total = sum(max(members) for _, members in step)
        for mean, members in step:
            assert mean == pytest.approx(max(members) / total, abs=1e-6)
