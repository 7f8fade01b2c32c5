"""Compiles ``ensemble/step/compiled.c`` when a wheel or an editable installation is made.

Without a C compiler the package does without it, and the wheel is for every platform. So it is with
``HATCH_BUILD_NO_HOOKS=true``, which hatchling reads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("ensemble", "step", "compiled.c")
LIBRARY = SOURCE.with_name("_compiled.so")
FLAGS = ("-O3", "-std=c11", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")


class CompiledStep(BuildHookInterface[Any]):
    """See the module."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # as hatchling calls it
        """Compile, and put the library into the wheel."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        fresh = root / LIBRARY.with_suffix(f".{os.getpid()}")
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None or not _compile(compiler, root / SOURCE, fresh):
            self.app.display_warning(f"no C compiler has made {LIBRARY}; the package works without it, and more slowly")
            return
        # In one step: a program that runs has the old file open.
        fresh.replace(root / LIBRARY)
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"] = False
        # Any Python loads it, since it calls nothing of Python.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _compile(compiler: str, source: Path, target: Path) -> bool:
    return subprocess.run([compiler, *FLAGS, source, "-o", target, "-lm"], check=False).returncode == 0
