"""What the project promises as a whole: the lock, the build, a light start, files that fit any machine, the lanes."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from conftest import CASES, SECOND_LANE
from hatchling.bridge.app import Application
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.structure import modules, tree
from hatch_build import LIBRARY, SOURCE, CompiledStep

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("advisor", "ensemble", "reports")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MODEL_LIBRARIES = {"torch", "transformers", "tokenizers", "datasets", "safetensors"}
HELP = "import sys, ensemble, reports; from advisor.cli import main; sys.argv = ['advisor', '--help']; sys.exit(main())"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


@pytest.fixture(scope="module")
def lock() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def locked(lock: list[Requirement], python: str) -> dict[str, list[str]]:
    """The versions that the lock names for each distribution on Linux."""
    where = {"python_version": python, "python_full_version": f"{python}.0"}
    where |= {"sys_platform": "linux", "os_name": "posix", "platform_machine": "x86_64", "platform_system": "Linux"}
    found: dict[str, list[str]] = {}
    for requirement in lock:
        if requirement.marker is None or requirement.marker.evaluate(where):
            found.setdefault(canonicalize_name(requirement.name), []).append(str(requirement.specifier))
    return found


def direct(project: dict[str, Any]) -> list[Requirement]:
    extras = project["project"]["optional-dependencies"].values()
    lines = [*project["project"]["dependencies"], *(line for extra in extras for line in extra)]
    # An extra may name others of the project.
    return [each for line in lines if (each := Requirement(line)).name != project["project"]["name"]]


@pytest.mark.parametrize("python", PYTHONS)
def test_lock_has_one_exact_version_of_every_direct_dependency(project, lock, python):
    versions = locked(lock, python)
    for requirement in direct(project):
        pins = versions.get(canonicalize_name(requirement.name), [])
        assert len(pins) == 1, f"{requirement.name} on Python {python}: {pins or 'not locked'}; run `make lock`"
        assert re.fullmatch(r"==[\w.]+", pins[0]), f"{requirement.name}{pins[0]} is not exact"
        assert requirement.specifier.contains(pins[0].removeprefix("==")), f"{requirement} against {pins[0]}"


def test_lock_names_only_exact_versions(lock):
    assert [str(line) for line in lock if not re.fullmatch(r"==[\w.]+", str(line.specifier)) or line.url] == []


@pytest.mark.parametrize("python", PYTHONS)
def test_lock_names_the_torch_that_has_a_cpu_build(lock, python):
    assert locked(lock, python)["torch"] == ["==2.13.0"]


def test_lock_leaves_what_only_cuda_needs_to_torch(lock):
    assert [line.name for line in lock if line.name.startswith(("nvidia-", "cuda-", "triton"))] == []


def test_distribution_is_installed_under_its_name_and_version(project):
    try:
        installed = version("unite-advisor")
    except PackageNotFoundError:
        pytest.skip("unite-advisor is not installed in this environment; `make venv` does it")
    assert installed == project["project"]["version"]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_says_that_it_is_typed(package):
    assert (ROOT / package / "py.typed").exists()


def test_changelog_has_the_current_version(project):
    assert f"[{project['project']['version']}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_git_ignores_no_file_of_the_packages():
    """The wheel has only what git may see, and the library that the build compiles."""
    packages = ["advisor", "ensemble", "reports"]
    command = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", *packages]
    try:
        ignored = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("this is no clone of git")
    assert {name for name in ignored if "__pycache__" not in name} <= {"ensemble/step/_compiled.so"}


def test_make_alone_lists_every_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    try:
        listed = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("make is not here")
    assert [line.split()[1] for line in listed.splitlines()] == phony[1].split()
    rules = re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE)
    assert rules == phony[1].split()


def test_help_loads_no_model_library():
    command = [sys.executable, "-X", "importtime", "-c", HELP]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr.splitlines()
    loaded = {line.rpartition("|")[2].strip() for line in said if line.startswith("import time:")}
    assert "advisor.cli" in loaded
    heavy = {"torch", "transformers", "datasets", "matplotlib.pyplot", "sklearn", "scipy", "pydantic"}
    assert loaded & heavy == set()


def test_commands_that_can_do_without_models_import_no_model_library():
    """By what stands at the top of each module; test_base.py runs them."""
    sources, seen, waiting = dict(modules(ROOT)), set[str](), ["advisor.cli"]
    waiting += [name for name in sources if name.startswith("advisor.commands.")]
    while waiting:
        name = waiting.pop()
        for node in tree(sources[name]).body if name in sources and name not in seen else ():
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                waiting += [f"{node.module}.{alias.name}" for alias in node.names]
        # A module is loaded after the packages that it is in.
        waiting += [parent] if (parent := name.rpartition(".")[0]) and name not in seen else []
        seen.add(name)
    assert "advisor.advice.rules" in seen
    assert seen & MODEL_LIBRARIES == set()


def test_files_name_no_machine_path_and_no_registry():
    patterns = {
        "a path that only one machine has": r"(?<![\w.~}<\\/$-])/(?:(?:work|opt|root)\b|(?:home|Users)/)",
        "a package registry": r"(?:\bpypi|pythonhosted|download\.pytorch)\.org\b|registry\.npmjs|deb\.debian",
    }
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights and pictures
        for what, pattern in patterns.items():
            for number, line in enumerate(text.splitlines(), start=1):
                if re.search(pattern, line):
                    found.append(f"{path.relative_to(ROOT)}:{number} names {what}: {line.strip()[:100]}")
    assert found == []


def test_clone_stays_small():
    total = sum(path.stat().st_size for path in tracked_files())
    assert total <= 25e6, f"the tracked files have {total / 1e6:.1f} MB; 25 MB is the limit"


def tracked_files() -> list[Path]:
    """What git holds, as it lies in the work tree."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"git cannot list the files: {done.stderr.strip()}")
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


# --- The two lanes ---


@pytest.mark.parametrize("place", [*SECOND_LANE, *CASES])
def test_what_the_second_lane_names_exists(place: str) -> None:
    file, _, function = place.partition("::")
    assert (ROOT / "tests" / file).is_file()
    assert not function or re.search(
        rf"^def {function}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE
    )


def build(folder: Path) -> dict[str, Any]:
    """What the hook asks for where the sources are in this folder."""
    (folder / SOURCE).parent.mkdir(parents=True)
    shutil.copy(ROOT / SOURCE, folder / SOURCE)
    data: dict[str, Any] = {"artifacts": [], "pure_python": True}
    hook: Any = CompiledStep
    hook(str(folder), {}, None, None, str(folder / "dist"), "wheel", Application()).initialize("standard", data)
    return data


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_wheel_has_the_library_and_is_for_this_platform_and_every_python(tmp_path: Path) -> None:
    data = build(tmp_path)
    assert data["artifacts"] == [LIBRARY.as_posix()]
    assert data["tag"].startswith("py3-none-")
    assert not data["pure_python"]
    assert ctypes.CDLL(str(tmp_path / LIBRARY)).unite_union


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_compiler_the_wheel_is_for_every_platform(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert build(tmp_path) == {"artifacts": [], "pure_python": True}
    assert not (tmp_path / LIBRARY).exists()
