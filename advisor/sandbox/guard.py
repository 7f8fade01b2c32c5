"""The inner end of the sandbox: a script that gives up its rights and then runs one program.

The process becomes user 65534 (if it was root), enters new namespaces, and forks into a guard, process 1 of its
namespace, and the program. When the guard ends, the system ends every process of its namespace; without namespaces the
guard adopts the processes that the program leaves, and kills each.
"""

from __future__ import annotations

# Only the standard library, since this file runs as a script; all of it at the start, since user 65534 may not be
# allowed to read it later.
import contextlib
import ctypes
import errno
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

TOO_LATE, KILLED, ENDED = 4, 3, 1  # exit statuses; 0 is a program that ended normally
_LINUX = sys.platform.startswith("linux")
UNPRIVILEGED = 65534  # the user and group that own nothing, on every Linux and macOS
_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_SET_DUMPABLE, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 4, 36, 38  # of prctl
_MOUNT_SETATTR, _HERE, _RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1  # 442 on every architecture since Linux 5.12
_NO_SUID_NO_DEVICES, _NO_PROGRAMS, _BIND, _RECURSIVELY, _PRIVATE = 2 | 4, 8, 0x1000, 0x4000, 0x40000  # of mount
_CAPABILITIES_3 = 0x20080522
# The C library has no function for this call, and its number depends on the processor.
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
_JOIN_SESSION_KEYRING = 1


class _TooLateError(Exception):
    """The time is up."""


def main() -> NoReturn:
    """Read the job, give up rights, and run the program."""
    os.umask(0o022)  # user 65534 must be able to enter the folders that are made below
    sys.path.pop(0)  # the program must not import the modules of this folder
    job = json.loads(sys.stdin.buffer.read())
    report = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    try:
        if _LINUX:
            _leave_keyring()
        if job["unprivileged"]:
            if job["namespaces"]:
                _show(job["library"])  # before the change of user, since only root may mount
            _become_unprivileged()
        if job["namespaces"]:
            _enter_namespaces(job)
            # Only a child is in the new namespace of processes, and the first one is its process 1.
            guard = os.fork()
            if guard:
                os.close(report)
                os._exit(os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1]) & 0xFF)
            _hide_other_processes()
        status = _guarded(job, report)
    except OSError as error:
        os.write(report, f"broken {error}".encode())
        status = ENDED
    os._exit(status)


def _guarded(job: dict[str, Any], report: int) -> int:
    """Run the program in a new process until its time is up, and kill every process that it started."""
    if _LINUX:
        # Processes whose parent ends become children of this one, where _kill_rest finds them.
        _libc().prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGALRM, _too_late)
    program = os.fork()
    if program == 0:
        _run_in_this_process(job, report)
    os.close(report)
    status = TOO_LATE
    with contextlib.suppress(_TooLateError):
        signal.setitimer(signal.ITIMER_REAL, job["seconds"])
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        status = KILLED if code < 0 else ENDED if code else 0
        signal.setitimer(signal.ITIMER_REAL, 0)
    if not job["namespaces"]:  # else this is process 1 of its namespace, and all others end with it
        _kill_rest(program)
    return status


def _run_in_this_process(job: dict[str, Any], report: int) -> NoReturn:
    """Run the program in this process, the innermost one, and end it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.setsid()
    if _LINUX:
        _drop_privileges()
    _limit(job)
    os.write(report, b"ready\n")
    outcome = _outcome(job["program"], job["tests"], f"passed {job['nonce']}")
    os.write(report, outcome.encode())
    os._exit(0)  # at once: the program may have registered functions that run at exit


def _outcome(program: str, tests: Sequence[str], passed: str) -> str:
    """Run the program, then the tests in its module; ``passed``, or the name of the exception."""
    # A module, since data classes and pickle look up the module of a class; not __main__, since the demonstration below
    # `if __name__ == "__main__"` is not part of the answer.
    module = sys.modules["program"] = types.ModuleType("program")
    try:
        for source in (program, *tests):
            exec(compile(source, "<program>", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # noqa: BLE001  # the program has failed with any exception, SystemExit too
        return f"failed {type(error).__name__}"
    return passed


def _limit(job: dict[str, Any]) -> None:
    for name, value in job["limits"].items():
        which = getattr(resource, name, None)
        if which is not None:
            hard = resource.getrlimit(which)[1]
            limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
            with contextlib.suppress(ValueError, OSError):  # macOS refuses to limit memory
                resource.setrlimit(which, (limit, limit))


def _too_late(_signal: int, _frame: object) -> NoReturn:
    raise _TooLateError


def _kill_rest(program: int) -> None:
    """Kill the program's group, then on Linux every process that this one has adopted, until none is left."""
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


def _check(result: int, call: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def _leave_keyring() -> None:
    """Enter a new, empty session keyring: the caller's is inherited, with the keys of its file systems and tickets."""
    number = _KEYCTL.get(os.uname().machine)
    if number is None or _libc().syscall(number, _JOIN_SESSION_KEYRING, None) != -1:
        return
    # What the kernel or a filter refuses to this process, it refuses to the program. Any other error ends the guard.
    if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM, errno.EACCES):
        _check(-1, "keyctl")


def _show(folders: Sequence[str]) -> None:
    """Let user 65534 reach the interpreter in a folder that only root may enter, but nothing else in it."""
    hidden = {folder: closed for folder in folders if (closed := _closed(Path(folder))) is not None}
    if not hidden:
        return
    _check(_libc().unshare(_NEW_MOUNTS), "unshare")
    # Private, so that the mounts below stay in this process.
    _check(_libc().mount(None, b"/", None, _RECURSIVELY | _PRIVATE, None), "mount")
    # Opened before an empty file system covers them.
    opened = {folder: os.open(folder, os.O_PATH) for folder in hidden}
    for closed in sorted(set(hidden.values())):
        _check(
            _libc().mount(b"tmpfs", os.fsencode(closed), b"tmpfs", _NO_SUID_NO_DEVICES, b"size=1m,mode=755"), "mount"
        )
    for folder, descriptor in opened.items():
        Path(folder).mkdir(parents=True, exist_ok=True)
        source = f"/proc/self/fd/{descriptor}".encode()
        _check(_libc().mount(source, os.fsencode(folder), None, _BIND | _RECURSIVELY, None), "mount")
        os.close(descriptor)


def _closed(folder: Path) -> Path | None:
    """The highest folder above this one that only its owner may enter; None if all are open."""
    return next((above for above in reversed(folder.parents) if not above.stat().st_mode & stat.S_IXOTH), None)


def _become_unprivileged() -> None:
    # Root has no limit on processes, and may read and write every file.
    os.setgroups([])
    os.setgid(UNPRIVILEGED)
    os.setuid(UNPRIVILEGED)
    # A change of user gives /proc/self to root, but the next step writes its maps there.
    _libc().prctl(_SET_DUMPABLE, 1, 0, 0, 0)


def _enter_namespaces(job: dict[str, Any]) -> None:
    """Cut off the network and other processes; if the job says ``read_only``, also writing outside of this folder."""
    user, group = os.getuid(), os.getgid()
    kinds = _NEW_USER | _NEW_NETWORK | _NEW_PROCESSES | _NEW_MOUNTS | _NEW_IPC
    _check(_libc().unshare(kinds), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # Without further namespaces: in a new one the program would have all rights again.
    with contextlib.suppress(OSError):
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    if job["read_only"]:
        folder = os.getcwd()  # noqa: PTH109  # a string, for the system calls below
        # struct mount_attr: set, clear, propagation, user namespace
        read_only = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
        size = ctypes.c_size_t(ctypes.sizeof(read_only))
        _check(_libc().syscall(_MOUNT_SETATTR, _HERE, b"/", _RECURSIVE, read_only, size), "mount_setattr")
        options = f"size={job['disk']},nr_inodes=4096,mode=700".encode()
        _check(_libc().mount(b"tmpfs", os.fsencode(folder), b"tmpfs", _NO_SUID_NO_DEVICES, options), "mount")
        os.chdir(folder)


def _hide_other_processes() -> None:
    """Show in /proc only the processes of this namespace; nothing at all in a container that does not allow it."""
    flags = _NO_SUID_NO_DEVICES | _NO_PROGRAMS | _READ_ONLY
    if _libc().mount(b"proc", b"/proc", b"proc", flags, None) != 0:
        _check(_libc().mount(b"tmpfs", b"/proc", b"tmpfs", flags, b"size=4k"), "mount")


def _drop_privileges() -> None:
    """Give up the rights of a namespace's first user, which open a large part of the kernel to attacks."""
    libc = _libc()
    libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    _check(libc.capset(header, none), "capset")


if __name__ == "__main__":
    main()
