"""A reader in a process of its own: what it may return, and every way in which it can end."""

import errno
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import s6, write
from teravox import config, contained, ingest, numa
from teravox.errors import RejectedCase, UserError

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
SECRET = "DOE^JOHN"


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of scratch files, which must be empty afterwards, as must the list of this process's children."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def call(function: Callable[..., Any], *args: Any) -> Any:
    return contained.call(function, *args, about="x.dcm", megabytes=0)


def refused(function: Callable[..., Any], *words: str) -> None:
    with pytest.raises(RejectedCase) as caught:
        call(function)
    message = str(caught.value)
    assert message.startswith("x.dcm: ") and len(message.splitlines()) == 1
    assert SECRET not in message
    for word in words:
        assert word in message


def raising(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


def leave_a_file() -> None:
    with tempfile.NamedTemporaryFile(delete=False) as stream:
        stream.write(b"x")


def gone(process: int) -> bool:
    """Whether a process ends within a second; as a zombie it counts as ended, since its new parent may never wait for it."""
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
def test_arrays_come_back(dtype: str) -> None:
    """C order, Fortran order, neither, empty, a scalar and none, beside other values; they can be written to."""
    base = np.arange(5 * 6 * 7).reshape(5, 6, 7).astype(dtype)
    given = {"c": base, "f": base.T, "neither": base[::-1, ::2], "empty": base[:0], "scalar": base[0, 0, 0], "none": None, "text": "é\ud800"}
    found = call(lambda: given)
    assert list(found) == list(given)
    for name in ("c", "f", "neither", "empty", "scalar"):
        np.testing.assert_array_equal(found[name], given[name])
        assert found[name].dtype == given[name].dtype
    assert found["none"] is None and found["text"] == given["text"]
    assert found["f"].flags.f_contiguous and found["c"].ctypes.data % contained.ALIGNMENT == 0
    found["c"][:] = 1
    np.testing.assert_array_equal(found["f"], given["f"])
    assert base[0, 0, 1] == 1 and base[4, 5, 6] == np.arange(210).astype(dtype)[-1]


def test_a_large_array_is_not_copied_in_this_process() -> None:
    """200 MB come back, and this process holds no more than them: mapped, counted once where they are read."""
    before = resident()
    found = call(lambda: np.full(10**8, 7, np.int16))
    assert resident() - before < 20e6
    assert found.sum(dtype=np.int64) == 7 * 10**8
    assert resident() - before < 230e6


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_arguments_reach_it_and_this_process_stays_as_it_was() -> None:
    held = [1]

    def function(array: np.ndarray, more: int) -> int:
        held.append(2)
        return int(array.sum()) + more

    assert contained.call(function, np.arange(4), 5, about="x", megabytes=0) == 11
    assert held == [1]


def test_a_rejection_is_kept_and_another_exception_is_told_by_its_kind_and_place() -> None:
    with pytest.raises(RejectedCase, match=r"^a: b, expected c$"):
        call(raising(RejectedCase("a: b, expected c")))
    refused(raising(ValueError(f"bad value {SECRET}")), "not readable (ValueError in test_contained.py)")
    refused(raising(type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})()), "Odd in test_contained.py")
    refused(lambda: deeper(0), "RecursionError")
    refused(raising(type("Panic", (BaseException,), {})()), "Panic in test_contained.py")  # as extensions in Rust raise


def deeper(level: int) -> int:
    return deeper(level + 1) + 1


def test_a_result_that_cannot_be_pickled() -> None:
    refused(lambda: memoryview(b"x"), "not readable (TypeError")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM])
def test_a_reader_that_dies(number: signal.Signals) -> None:
    def function() -> None:
        faulthandler.disable()  # pytest's, which prints
        leave_a_file()
        os.kill(os.getpid(), number)

    refused(function, f"ended by signal {number.value},")


@pytest.mark.parametrize("status", [0, 1, 7, contained.HANDING_OVER])
def test_a_reader_that_exits(status: int) -> None:
    """As a library may that calls exit(); whatever the status, there is no volume."""
    with pytest.raises(UserError, match=r"x\.dcm: its reader"):
        call(lambda: os._exit(status))
    refused(raising(SystemExit(3)), "not readable (SystemExit in test_contained.py)")


@pytest.mark.parametrize("work", [lambda: time.sleep(60), lambda: all(iter(lambda: 1, 0))], ids=["waits", "works"])
def test_a_reader_that_hangs(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> None:
    monkeypatch.setattr(contained, "SECONDS", 0.5)

    def function() -> None:
        leave_a_file()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        work()

    begun = time.monotonic()
    refused(function, "not read within 0 s")
    assert time.monotonic() - begun < 5


def test_time_grows_with_the_size() -> None:
    assert contained.call(lambda: resource.getrlimit(resource.RLIMIT_CPU)[0], about="x", megabytes=1000) >= 1000 * contained.SECONDS_PER_MB


def test_a_reader_that_takes_memory_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "granted_bytes", lambda: 300_000_000)

    def function() -> None:
        leave_a_file()
        held = []
        while True:
            held.append(np.ones(10**6))

    refused(function, "more memory than the 0.3 GB")
    assert call(lambda: np.ones(10**7)).size == 10**7
    refused(lambda: np.broadcast_to(np.ones(1), (2 * 10**7,)), "more memory than")  # only pickling makes it large


@pytest.mark.parametrize("end", ["returns", "hangs", "dies"])
@pytest.mark.parametrize("made", ["forked", "started"])
def test_what_a_reader_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, made: str) -> None:
    monkeypatch.setattr(contained, "SECONDS", 1)

    def function() -> int:
        if made == "forked":
            process = os.fork()
            if process == 0:
                time.sleep(60)
                os._exit(0)
        else:
            process = subprocess.Popen(["sleep", "60"]).pid
        (tmp_path / "process").write_text(str(process))
        if end == "hangs":
            time.sleep(60)
        if end == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return process

    if end == "returns":
        assert call(function) == int((tmp_path / "process").read_text())
    else:
        refused(function, "not read within 1 s" if end == "hangs" else "signal 9")
    assert gone(int((tmp_path / "process").read_text()))


FULL = ["raised", "swallowed", "in a file"]


@pytest.mark.parametrize("how", FULL)
def test_a_full_disk_is_not_the_files_fault(how: str) -> None:
    """It stops the run rather than leaving out a case, even where a reader takes it for damage."""

    def function() -> None:
        leave_a_file()
        try:
            if how == "in a file":
                resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
                with tempfile.TemporaryFile() as stream:
                    stream.write(bytes(20_000))
            raise OSError(errno.ENOSPC, f"no space for {SECRET}")
        except OSError as error:
            if how == "raised":
                raise
            raise RejectedCase(f"x.dcm: pixels cannot be decoded ({type(error).__name__})") from None

    with pytest.raises(UserError, match=r"^x\.dcm: while it was read, .*(No space left|File too large).*make room") as caught:
        call(function)
    assert not isinstance(caught.value, RejectedCase) and SECRET not in str(caught.value)


def test_a_result_that_cannot_be_handed_over() -> None:
    def function() -> np.ndarray:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        return np.ones(10_000)

    with pytest.raises(UserError, match="could not hand over") as caught:
        call(function)
    assert not isinstance(caught.value, RejectedCase)


def test_limits_of_this_process_are_not_exceeded() -> None:
    """A lower limit that somebody set stays, rather than making every file unreadable."""

    def nested() -> tuple[int, int]:
        resource.setrlimit(resource.RLIMIT_CPU, (9, 9))
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 10**9
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        found = contained.call(
            lambda: (resource.getrlimit(resource.RLIMIT_CPU)[1], resource.getrlimit(resource.RLIMIT_AS)[1]), about="y", megabytes=0
        )
        return found[0] - 9, found[1] - size

    assert call(nested) == (0, 0)


def test_what_libraries_print_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    def function() -> None:
        os.write(1, SECRET.encode())
        os.write(2, SECRET.encode())
        subprocess.run(["sh", "-c", f"echo '{SECRET}' >&2"], check=True)

    call(function)
    os.write(1, b"after")
    assert capfd.readouterr() == ("after", "")


def run(code: str, **keywords: Any) -> subprocess.Popen[str]:
    begin = f"import os, signal, sys, time\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
    return subprocess.Popen([sys.executable, "-c", begin + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keywords)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_that_is_ended_leaves_nothing(scratch: Path, number: signal.Signals, status: int) -> None:
    """Neither scratch files nor the reader, nor what that has started."""
    code = """
import argparse, subprocess, tempfile
from teravox import contained, errors
def work():
    tempfile.NamedTemporaryFile(delete=False)
    with open(READY, "w") as stream:
        stream.write(f"{os.getpid()} {subprocess.Popen(['sleep', '60']).pid}\\n")
    time.sleep(60)
sys.argv = ["x"]
try:
    sys.exit(errors.run_command(lambda args: contained.call(work, about="x", megabytes=0), argparse.ArgumentParser()))
except KeyboardInterrupt:
    os._exit(130)
"""
    ready = scratch.parent / "ready"
    process = run(f"READY = {str(ready)!r}\n{code}", env={**os.environ, "TMPDIR": str(scratch)})
    while process.poll() is None and not (ready.exists() and ready.read_text().endswith("\n")):
        time.sleep(0.01)
    assert list(scratch.iterdir())
    process.send_signal(number)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == status, errors
    assert all(gone(int(number)) for number in ready.read_text().split())


def test_a_reader_whose_parent_was_killed_does_not_work_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = tmp_path / "ready"
    code = f"""
from teravox import contained
contained.SECONDS = 0.1
def work():
    open({str(ready)!r}, "w").write(f"{{os.getpid()}}\\n")
    os.kill(os.getppid(), signal.SIGKILL)
    while True: pass
contained.call(work, about="x", megabytes=0)
"""
    process = run(code, env={**os.environ, "TMPDIR": str(tmp_path)})
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL
    time.sleep(1)
    end = time.monotonic() + 20  # it is given a second, and some where others use the machine
    while not gone(int(ready.read_text())) and time.monotonic() < end:
        pass
    assert gone(int(ready.read_text()))


def test_no_thread_runs_when_ingestion_forks(scratch: Path) -> None:
    """What CPython 3.12 and later warn about: a fork copies one thread, and locks that the others hold stay locked for ever.

    NumPy's BLAS has threads, and ends them itself before a fork.
    """
    folder = write(scratch.parent / "series", s6())
    code = f"""
import json, runpy
import numpy as np
from pathlib import Path
sys.argv = ["ingest.py", "--help"]
try:
    runpy.run_path({str(SCRIPTS / "ingest.py")!r}, run_name="__main__")
except SystemExit:
    pass
from teravox import config, contained, ingest
counts = []
os.register_at_fork(after_in_parent=lambda: counts.append(len(os.listdir("/proc/self/task"))))
for _ in range(2):
    np.ones((700, 700)) @ np.ones((700, 700))
    contained.call(ingest.read_source, Path({str(folder)!r}), config.defaults("channels[].match"), config.defaults("ingest"), about="x", megabytes=1)
print(counts[-2:])
"""
    process = run(code)
    output, errors = process.communicate(timeout=60)
    assert output.endswith("[1, 1]\n"), errors
    assert "DeprecationWarning" not in errors


def test_a_source_is_read_as_directly(tmp_path: Path) -> None:
    folder = write(tmp_path / "series", s6())
    arguments = folder, config.defaults("channels[].match"), config.defaults("ingest")
    found, expected = call(ingest.read_source, *arguments), ingest.read_source(*arguments)
    np.testing.assert_array_equal(found.array, expected.array)
    assert found.array.dtype == expected.array.dtype and found.instances == expected.instances and found.accounts == expected.accounts
    (folder / "0.dcm").write_bytes(b"\0" * 128 + b"DICM" + b"\xff" * 100)
    with pytest.raises(RejectedCase, match=r"0\.dcm: .*damaged file"):
        call(ingest.read_source, *arguments)
