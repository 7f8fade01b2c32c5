"""What a program in the sandbox can and cannot do, shown by programs that try."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advisor import sandbox
from advisor.sandbox import Isolation, run_program
from ensemble.errors import InputError, UniteError

WEAKEST = Isolation(unprivileged=False, namespaces=False, read_only=False)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs namespaces or /proc of Linux")


@pytest.fixture
def namespaces() -> None:
    if not sandbox.isolation().namespaces:
        pytest.skip("this system gives no namespaces")


def reason(program: str, *tests: str, kind: Isolation | None = None, **limits: float) -> str | None:
    kind = kind or sandbox.isolation()  # found with the usual limits
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(run_program, name.upper(), value)
        return run_program._run(program, tests, kind)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("def f(:", "SyntaxError"),
        ("\x00", None),  # the exception depends on the version
        ("\ud800", "UnicodeEncodeError"),
        ("-" * 50_000 + "1", None),
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ended before its tests did"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed"),
        ("raise type('passed\\n', (BaseException,), {})", "ended before its tests did"),
        ("input()", "EOFError"),
        (
            "import os\nfor n in range(3):\n  try: os.write(n, b'ready\\npassed')\n  except OSError: pass\nos._exit(0)",
            "ended before its tests did",
        ),
    ],
)
def test_a_program_that_ends_early_has_not_passed(program: str, why: str | None) -> None:
    found = reason(program, "pass")
    assert found is not None
    assert why is None or found.startswith(why)


def test_a_program_passes_when_all_its_tests_do() -> None:
    assert reason("def f(x): return 2 * x", "assert f(2) == 4", "assert f(3) == 6") is None
    assert reason("def f(x): return 2 * x", "assert f(2) == 4", "assert f(3) == 7") == "AssertionError"


def test_a_flood_on_every_pipe_is_cut_off() -> None:
    program = (
        "import os\nwhile True:\n  for n in range(1, 16):\n    try: os.write(n, b'x' * 4096)\n    except OSError: pass"
    )
    assert reason(program, seconds=0.5) is not None


def test_an_endless_loop_ends_with_its_processor_time() -> None:
    assert "1 s of processor time" in str(reason("while True: pass", cpu_seconds=1))


def test_a_sleeper_ends_with_its_time() -> None:
    start = time.monotonic()
    assert reason("import time; time.sleep(60)", seconds=0.2) == "not done after 0.2 s"
    assert time.monotonic() - start < 30


@linux
def test_memory_and_files_are_bounded() -> None:
    assert reason("bytearray(1 << 29)", memory=1 << 28) == "MemoryError"
    program = "bytearray(1 << 20)\nwith open('file', 'wb') as file:\n  for n in range(4): file.write(bytes(1 << 20))"
    assert reason(program, memory=1 << 28, file_size=1 << 20) == "OSError"
    assert reason(program, memory=1 << 28, file_size=4 << 20) is None


def test_all_files_together_are_bounded() -> None:
    if not sandbox.isolation().read_only:
        pytest.skip("this system gives no file system for a program alone")
    program = "for n in range(8):\n  with open(str(n), 'wb') as file: file.write(bytes(1 << 20))"
    assert reason(program, disk=4 << 20) == "OSError"


@linux
def test_a_fork_bomb_is_bounded(namespaces: None) -> None:
    if os.getuid() == 0 and not sandbox.isolation().unprivileged:
        pytest.skip("no limit on processes binds root")
    program = """
import os, time
n = 0
try:
    while n < 100:
        if not os.fork(): time.sleep(60)
        n += 1
except OSError: pass
"""
    assert reason(program, "assert n < 16", processes=16) is None


@linux
def test_a_fork_bomb_that_goes_on_is_killed_whole(namespaces: None) -> None:
    program = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    assert reason(program, seconds=0.5, processes=16) == "not done after 0.5 s"


def test_there_is_no_network(namespaces: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)"
        assert reason(connect) == "OSError"  # "network is unreachable": not even this machine's own
        assert reason(connect, kind=WEAKEST) is None


def test_the_environment_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    test = "assert 'HF_TOKEN' not in os.environ and '/somewhere' not in sys.path and os.environ['HOME'] == os.getcwd()"
    assert reason("import os, sys", test) is None


READ_ENVIRONMENTS = """
import glob
found = b""
for path in glob.glob("/proc/*/environ"):
    try: found += open(path, "rb").read()
    except OSError: pass
"""
CALL = "from advisor import sandbox; print(sandbox.run({program!r}, [{test!r}]))"


def elsewhere(code: str, **environment: str) -> str:
    """What Python code prints in another process: its environment and its keyring are not those of the tests."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@linux
def test_the_environment_of_the_callers_process_cannot_be_read() -> None:
    if not sandbox.isolation().namespaces:
        pytest.skip("this system cannot isolate a program from its caller")
    code = CALL.format(program=READ_ENVIRONMENTS, test="assert b'a-secret-of-mine' not in found")
    assert elsewhere(code, MY_API_KEY="a-secret-of-mine") == "None"


READ_COMMANDS = """
import glob, os
mine = {str(os.getpid()), str(os.getppid()), "1"}
others = [path for path in glob.glob("/proc/[0-9]*/cmdline") if path.split("/")[2] not in mine]
read = b"".join(open(path, "rb").read() for path in glob.glob("/proc/[0-9]*/cmdline"))
"""


@linux
def test_the_command_lines_of_other_processes_cannot_be_read(namespaces: None) -> None:
    command = [sys.executable, "-c", "input()", "a-secret-of-mine"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            assert sandbox.run(READ_COMMANDS, ["assert others == []", "assert b'a-secret-of-mine' not in read"]) is None
        finally:
            process.kill()


def test_a_sandbox_without_namespaces_is_weak_also_where_root_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # User 65534 is the guard's user, too: a program can end it, and leave a process with network behind.
    kind = Isolation(unprivileged=True, namespaces=False, read_only=False)
    monkeypatch.setattr(run_program, "isolation", lambda: kind)
    with pytest.raises(InputError, match="set ADVISOR_WEAK_SANDBOX=1 to take that risk"):
        sandbox.check_strong()


KEYCTL = """
import ctypes, os
number = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
libc = ctypes.CDLL(None)
JOIN, SEARCH, SESSION = 1, 10, -3
"""


@linux
@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="needs the number of a system call")
def test_the_callers_keyring_cannot_be_read() -> None:
    search = "libc.syscall(number, SEARCH, SESSION, b'user', b'my-key', 0)"
    add = "libc.syscall(number - 2, b'user', b'my-key', b'secret', 6, SESSION)"
    mine = f"{KEYCTL}\nlibc.syscall(number, JOIN, None)\n{add}\n"
    if elsewhere(f"{mine}print({search} > 0)") != "True":
        pytest.skip("this system has no keyrings")
    call = CALL.format(program=KEYCTL, test=f"assert {search} < 0")
    assert elsewhere(mine + call) == "None"


DEEP = """
assert sorted(os.listdir()) == ["a", "link"]
for _ in range(400):
    os.mkdir("a-long-name")
    os.chdir("a-long-name")
os.mkdir("closed")
open("closed/file", "w").close()
os.chmod("closed", 0)
"""


def test_a_tree_of_any_depth_is_gone_afterwards_and_what_its_links_lead_to_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o555)
    links = f"import os\nos.mkdir('a')\nos.symlink({str(kept)!r}, 'a/link')\nos.symlink({str(kept)!r}, 'link')\n"
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(350)  # 1,000 folders would take seconds
    try:
        assert reason(links + DEEP, kind=WEAKEST) is None
    finally:
        sys.setrecursionlimit(limit)
    assert list(tmp_path.iterdir()) == [kept]
    assert kept.stat().st_mode & 0o777 == 0o555


def test_a_program_may_delete_its_folder() -> None:
    program = "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)"
    assert reason(program) is None
    assert reason(program, kind=WEAKEST) is None


def test_nothing_can_be_written_outside_of_its_folder() -> None:
    if not sandbox.isolation().read_only:
        pytest.skip("this system does not let file systems be shut")
    for folder in (Path.home(), Path("/tmp"), Path("/dev/shm"), Path(__file__).parent):
        found = reason(f"open('{folder}/unite-advisor-was-here', 'w')")
        assert found in ("OSError", "PermissionError", "FileNotFoundError")
        assert not (folder / "unite-advisor-was-here").exists()


DAEMON = """
import os, pathlib, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1.5)
        with open(os.path.join({folder!r}, "alive"), "w"): os._exit(0)
    os._exit(0)
os.wait()
"""


@linux
@pytest.mark.parametrize("then", ["", "time.sleep(60)"], ids=["that ends", "that is killed"])
def test_a_daemon_does_not_outlive_its_program(tmp_path: Path, then: str) -> None:
    # A strong sandbox holds against a program that ends its guard, too.
    kill_guard = "\nimport signal\nos.kill(os.getppid(), signal.SIGKILL)\n"
    if sandbox.isolation().namespaces:
        program = DAEMON.format(folder=str(tmp_path)) + kill_guard + then
        reason(program, seconds=0.5)
    for kind in {sandbox.isolation(), WEAKEST}:
        program = DAEMON.format(folder=str(tmp_path)) + then
        reason(program, kind=kind, seconds=0.5)
    time.sleep(2)
    assert not (tmp_path / "alive").exists()


def test_sets_have_the_same_order_in_every_run() -> None:
    assert reason("", f"assert hash('a') == {elsewhere('print(hash(chr(97)))', PYTHONHASHSEED='0')}") is None


def test_data_classes_and_the_library_work_and_a_demonstration_is_not_run() -> None:
    program = (
        "from __future__ import annotations\nimport dataclasses, decimal, heapq, pickle\n"
        "@dataclasses.dataclass\nclass P:\n  x: int\n"
        "if __name__ == '__main__': raise SystemExit(1)"
    )
    assert reason(program, "assert pickle.loads(pickle.dumps(P(1))) == P(1)") is None


def test_a_system_where_no_program_runs_is_said_and_no_program_fails_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_program, "_GUARD", Path("/there/is/no/guard.py"))
    with pytest.raises(UniteError, match="the sandbox did not start: exit status 2"):
        reason("x = 1", kind=WEAKEST)
    run_program.isolation.cache_clear()
    try:
        with pytest.raises(UniteError, match=r"programs cannot run here: .*; score MBPP on another system"):
            run_program.isolation()
    finally:
        run_program.isolation.cache_clear()


def test_what_the_system_does_not_give_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_program, "isolation", lambda: WEAKEST)
    notes = run_program.gaps()
    assert any("with network" in note for note in notes)
    assert any("can write wherever" in note for note in notes)
