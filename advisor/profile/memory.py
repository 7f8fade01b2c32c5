"""How much memory was used at the highest, between two moments."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"
"""What ``clear_refs`` takes for: begin anew with the highest resident memory."""


def begin_peak() -> None:
    """Forget how much memory was used so far."""
    import torch

    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):  # not Linux, or not allowed: see peak()
        (_PROCESS / "clear_refs").write_text(_RESET_PEAK)


def peak() -> int | None:
    """The most memory that was used since :func:`begin_peak`, in bytes.

    Returns:
        On GPUs, where any was used, what torch had allocated on all of them; else what was resident of the whole
        process, libraries included. None where the system does not tell.
    """
    import torch

    on_devices = sum(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))
    return on_devices or _resident()


def _resident() -> int | None:
    try:
        # Where the peak cannot be reset, it may be that of another model.
        (_PROCESS / "clear_refs").open("w").close()
        found = re.search(r"^VmHWM:\s+(\d+) kB$", (_PROCESS / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
