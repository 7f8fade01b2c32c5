"""The inner end of the sandbox: a script that shuts itself in and runs one program there.

    {"program": "def f(): return 1", "tests": ["assert f() == 1"], "nonce": "9f86...", ...}   on standard input
    ready                                                                                    on standard output
    passed 9f86...

The process becomes nobody (where it was root), enters namespaces of its own, and forks: a guard, process 1 of its
namespace, and the program, whose limits are set just before it is run. With the guard everything ends that was started
in there. Where there are no namespaces the guard adopts what the program leaves behind, and kills it one by one.

The standard library alone, since it is run as a script, and all of it imported at the start, since nobody may not be
allowed to read it later. Not covered: Windows.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import stat
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

TOO_LATE, KILLED, ENDED = 4, 3, 1  # exit statuses; 0 is a program that ended as it should
_LINUX = sys.platform.startswith("linux")
_NOBODY = 65534
_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_SET_DUMPABLE, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 4, 36, 38  # of prctl
_MOUNT_SETATTR, _HERE, _RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1  # 442 on every architecture since Linux 5.12
_NO_SUID_NO_DEVICES, _BIND, _RECURSIVELY, _PRIVATE = 2 | 4, 0x1000, 0x4000, 0x40000  # of mount
_CAPABILITIES_3 = 0x20080522


class _TooLateError(Exception):
    """The time is up."""


def main() -> NoReturn:
    """Read the job, shut this process in, and run the program."""
    os.umask(0o022)  # nobody must be able to enter the folders that are made on the way
    sys.path.pop(0)  # this folder is none of the program's business
    job = json.loads(sys.stdin.buffer.read())
    report = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    try:
        if job["nobody"]:
            if job["namespaces"]:
                _show(job["library"])
            _become_nobody()
        if job["namespaces"]:
            _enter_namespaces(job)
            guard = os.fork()
            if guard:
                os.close(report)
                os._exit(os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1]) & 0xFF)
        status = _guarded(job, report)
    except OSError as error:
        os.write(report, f"broken {error}".encode())
        status = ENDED
    os._exit(status)


def _guarded(job: dict[str, Any], report: int) -> int:
    """Run the program in a process of its own, until its time is up, and kill all that it started."""
    if _LINUX:
        _libc().prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGALRM, _too_late)
    program = os.fork()
    if program == 0:
        _be_the_program(job, report)
    os.close(report)
    status = TOO_LATE
    with contextlib.suppress(_TooLateError):
        signal.setitimer(signal.ITIMER_REAL, job["seconds"])
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        status = KILLED if code < 0 else ENDED if code else 0
        signal.setitimer(signal.ITIMER_REAL, 0)
    if not job["namespaces"]:  # else this process is the first of its namespace, and all others end with it
        _kill_what_is_left(program)
    return status


def _be_the_program(job: dict[str, Any], report: int) -> NoReturn:
    """What happens in the innermost process; it ends only here, or is killed."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.setsid()
    if _LINUX:
        _drop_privileges()
    _limit(job)
    os.write(report, b"ready\n")
    said = _outcome(job["program"], job["tests"], f"passed {job['nonce']}")
    os.write(report, said.encode())
    os._exit(0)


def _outcome(program: str, tests: Sequence[str], passed: str) -> str:
    """Run the program, then the tests in its module, and say how that went."""
    # A module, since data classes and pickles look theirs up; not __main__, since a program's own demonstration
    # below `if __name__ == "__main__"` is no part of the answer.
    module = sys.modules["program"] = types.ModuleType("program")
    try:
        for source in (program, *tests):
            exec(compile(source, "<program>", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # noqa: BLE001  # whatever it is, SystemExit too, the program has failed
        return f"failed {type(error).__name__}"
    return passed


def _limit(job: dict[str, Any]) -> None:
    for name, most in job["limits"].items():
        which = getattr(resource, name, None)
        if which is not None:
            hard = resource.getrlimit(which)[1]
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            with contextlib.suppress(ValueError, OSError):  # macOS refuses to limit memory
                resource.setrlimit(which, (limit, limit))


def _too_late(_signal: int, _frame: object) -> NoReturn:
    raise _TooLateError


def _kill_what_is_left(program: int) -> None:
    """Kill the program's group, then on Linux every process that this one has adopted, until there is none."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while children.exists():
        for child in children.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _must(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _show(folders: Sequence[str]) -> None:
    """Let nobody reach the interpreter where that is in a folder of root's own, and nothing else of that folder."""
    hidden = {folder: closed for folder in folders if (closed := _closed(Path(folder))) is not None}
    if not hidden:
        return
    _must(_libc().unshare(_NEW_MOUNTS), "unshare")
    _must(_libc().mount(None, b"/", None, _RECURSIVELY | _PRIVATE, None), "mount")
    seen = {folder: os.open(folder, os.O_PATH) for folder in hidden}
    for closed in sorted(set(hidden.values())):
        _must(_libc().mount(b"tmpfs", os.fsencode(closed), b"tmpfs", _NO_SUID_NO_DEVICES, b"size=1m,mode=755"), "mount")
    for folder, descriptor in seen.items():
        Path(folder).mkdir(parents=True, exist_ok=True)
        source = f"/proc/self/fd/{descriptor}".encode()
        _must(_libc().mount(source, os.fsencode(folder), None, _BIND | _RECURSIVELY, None), "mount")
        os.close(descriptor)


def _closed(folder: Path) -> Path | None:
    """The uppermost folder on the way to this one that only its owner may enter."""
    return next((above for above in reversed(folder.parents) if not above.stat().st_mode & stat.S_IXOTH), None)


def _become_nobody() -> None:
    """Root is bound by no limit on processes, and may read and write every file."""
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)
    # A change of user makes /proc/self root's own, where the maps of the next step are written.
    _libc().prctl(_SET_DUMPABLE, 1, 0, 0, 0)


def _enter_namespaces(job: dict[str, Any]) -> None:
    """No network, no sight of other processes' memory, and (if asked for) no file that can be written but in here."""
    user, group = os.getuid(), os.getgid()
    kinds = _NEW_USER | _NEW_NETWORK | _NEW_PROCESSES | _NEW_MOUNTS | _NEW_IPC
    _must(_libc().unshare(kinds), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with contextlib.suppress(OSError):  # no namespaces below this one, in which the program would have rights again
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    if job["read_only"]:
        folder = os.getcwd()  # noqa: PTH109  # bytes of the path, as the system has it
        # set, clear, propagation, user namespace: struct mount_attr
        read_only = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
        size = ctypes.c_size_t(ctypes.sizeof(read_only))
        _must(_libc().syscall(_MOUNT_SETATTR, _HERE, b"/", _RECURSIVE, read_only, size), "mount_setattr")
        options = f"size={job['disk']},nr_inodes=4096,mode=700".encode()
        _must(_libc().mount(b"tmpfs", os.fsencode(folder), b"tmpfs", _NO_SUID_NO_DEVICES, options), "mount")
        os.chdir(folder)


def _drop_privileges() -> None:
    """Give up what a namespace's first user may do in it, and with it a large part of the kernel's surface."""
    libc = _libc()
    libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    _must(libc.capset(header, none), "capset")


if __name__ == "__main__":
    main()
