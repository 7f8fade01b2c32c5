"""Child processes: none imports from the working folder, and native parsers read strangers' files in one."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.structure import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("json", "re", "enum", "contextlib", "sitecustomize", "usercustomize", "ensemble", "torch", "advisor")
"""Modules that some child process imports first."""

STARTS = {
    ("advisor/sandbox/guard.py", "fork"): "imports nothing afterwards but what the program itself does",
    ("advisor/sandbox/run_program.py", "Popen"): "a script: its path begins with its own folder",
    ("ensemble/common/limits.py", "Popen"): "isolated by -I",
    ("advisor/models/ray_runner.py", "init"): "its workers: test_cluster_profiling.py",
    ("advisor/models/ray_runner.py", "remote"): "a worker of that cluster",
}
"""Every place where the product starts a Python process, and why it cannot import from the working folder."""
_MODULES = {"subprocess", "multiprocessing", "os", "ray", "asyncio", "pty", "concurrent.futures"}
_CALLS = {
    *("Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"),
    *("create_subprocess_exec", "create_subprocess_shell", "system", "popen", "fork", "forkpty", "posix_spawn"),
    *("posix_spawnp", "Process", "Pool", "Manager", "ProcessPoolExecutor", "init", "remote"),
}


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder whose modules leave a file behind when they are imported."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})", "utf-8")
    for name in ("transformers", "tokenizers", "ijson"):
        shutil.copytree(tmp_path, tmp_path / name)
        (tmp_path / name / "re.py").rename(tmp_path / name / "__init__.py")
    return tmp_path


def in_folder(folder: Path, code: str, *arguments: str) -> str:
    """Run code as an installed command would be: its own path has no working folder."""
    command = [sys.executable, "-I", "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (folder / "imported").exists(), (folder / "imported").read_text("utf-8")
    return done.stdout


LIMITS = "from ensemble.common.limits import limited_process"
CALL = "print(limited_process().call('re:escape', '.'))"


def test_a_child_does_not_import_from_the_working_folder_where_its_parent_does(trap: Path) -> None:
    # As in a notebook: the parent's path begins with the working folder.
    assert in_folder(trap, f"{LIMITS}; import sys; sys.path.insert(0, ''); {CALL}") == "\\.\n"


def test_a_command_in_a_downloaded_folder_runs_no_code_of_it(trap: Path) -> None:
    # The model's folder has such files, too.
    shutil.copytree(ROOT / "advisor" / "demo" / "models" / "terse-llama", trap, dirs_exist_ok=True)
    command = ("run", "--models", ".", "--max-new-tokens", "2", "Q")
    in_folder(trap, "from advisor.cli import main; main()", *command)


def test_a_new_cluster_does_not_import_from_the_working_folder(trap: Path) -> None:
    """PYTHONPATH with an empty entry means the working folder, and the processes of a cluster inherit it."""
    pytest.importorskip("ray")
    code = """
import os, ray
from advisor.models.ray_runner import cluster
os.environ["PYTHONPATH"] = os.pathsep.join(["", "/my/code", ".", os.getcwd()])
def init(**_):
    print(os.environ["PYTHONPATH"])
    raise SystemExit
ray.init = init
try:
    cluster("local").__enter__()
except Exception as error:
    assert "could not be started" in str(error)
"""
    assert in_folder(trap, code) == "/my/code\n"


def test_children_and_the_sandbox_do_not_take_the_import_path_of_the_environment(
    trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":")
    in_folder(trap, f"{LIMITS}; {CALL}; from advisor.sandbox.run_program import run; print(run('import re, enum', ()))")


@pytest.fixture(scope="module")
def product() -> dict[str, ast.Module]:
    """Each file of the product that may import one of these modules, by its path."""
    named = re.compile(rf"\b({'|'.join({name.partition('.')[0] for name in _MODULES} | NATIVE)})\b")
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    return {path: ast.parse(text) for path, text in texts.items() if named.search(text)}


def calls(tree: ast.Module) -> Iterator[str]:
    """The names of the calls in a file that start a process."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        module, _, name = imported.get(spelled := ast.unparse(node.func), spelled).rpartition(".")
        module = imported.get(module, module)
        known = module in _MODULES or module.startswith("multiprocessing")
        if known and (name in _CALLS or name.startswith(("exec", "spawn"))):
            yield name


def test_every_place_that_starts_a_process_is_known(product: dict[str, ast.Module]) -> None:
    assert {(path, name) for path, tree in product.items() for name in calls(tree)} == set(STARTS)


def test_what_benchmarks_start_is_isolated() -> None:
    """A Python process of a benchmark gets -I: some of them run in a folder of files that others wrote."""
    open_ones = []
    for path in (ROOT / "benchmarks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = [ast.unparse(part) for part in node.elts[:2]] if isinstance(node, ast.List) else []
            if parts[:1] == ["sys.executable"] and parts[1:] != ["'-I'"]:
                open_ones.append(f"{path.name}:{node.lineno}")
    assert open_ones == []


NATIVE = {
    *("ijson", "pyarrow", "datasets", "python_calamine", "openpyxl", "lxml", "orjson", "simdjson", "ujson", "msgpack"),
    *("yajl", "zstandard", "safetensors", "sqlite3", "h5py", "xml", "pandas", "PIL", "polars", "gguf"),
}
"""Libraries that parse files in native code: a crafted file may crash them, or take minutes and gigabytes."""
PARSERS = {
    ("advisor/api.py", "pandas"): "makes tables of our own numbers",
    ("advisor/tasks/draft/data.py", "datasets"): "asks the hub for names of splits",
    ("advisor/models/response_cache.py", "sqlite3"): "the user's own store",
    ("advisor/tasks/tables/libraries.py", "datasets"): "in the child process with limits",
    ("advisor/tasks/tables/libraries.py", "pyarrow"): "in the child process with limits",
    ("advisor/tasks/tables/libraries.py", "python_calamine"): "in the child process with limits",
    ("advisor/tasks/tables/libraries.py", "xml"): "in the child process with limits",
    ("advisor/tasks/data_sources.py", "datasets"): "data sets of the hub, which the library downloads and converts",
    ("ensemble/methods/_mapping.py", "safetensors"): "the user's own store",
    ("ensemble/models/gguf.py", "safetensors"): "writes the user's own store",
    ("ensemble/models/model_files.py", "safetensors"): "a header, in safe Rust",
    ("ensemble/vocabulary/joint.py", "safetensors"): "the user's own store",
    ("reports/charts/svg.py", "xml"): "our own figures",
}


def test_every_native_parser_is_known(product: dict[str, ast.Module]) -> None:
    found = set()
    for path, tree in product.items():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            found |= {(path, top) for top in {name.partition(".")[0] for name in names} & NATIVE}
    assert found == set(PARSERS)


def test_the_readers_of_tables_run_in_the_child_process_alone() -> None:
    importers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "advisor").rglob("*.py")
        if "advisor.tasks.tables.libraries" in path.read_text(encoding="utf-8")
    }
    # They take its limits, and call it by name.
    assert importers == {"advisor/tasks/tables/rows.py"}
