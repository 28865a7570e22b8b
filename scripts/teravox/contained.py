"""Reading files from outside in a process of its own, with bounded time and memory: what a file does to a decoder ends there."""

import contextlib
import os
import pickle
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from teravox import numa
from teravox.errors import RejectedCase

SECONDS, SECONDS_PER_MB = 60, 2  # far more than the slowest decoder takes, on a loaded machine
POLL_SECONDS = 0.002


def call(function: Callable[..., Any], *args: Any, about: str, megabytes: float) -> Any:
    """function(*args) in a forked process. about : begins a message; megabytes : size of what it reads, which sets its time.

    Raises what the function raises when it is a RejectedCase, and RejectedCase when it raises something else, dies, takes too long or
    needs more memory than this process may use. Scratch files of the process are removed whatever happens.
    """
    with tempfile.TemporaryDirectory(prefix="teravox-") as scratch:
        result = Path(scratch, "result")
        child = os.fork()
        if child == 0:
            _run(function, args, result, scratch)
        try:
            status = _wait(child, SECONDS + SECONDS_PER_MB * megabytes)
        finally:
            _end(child)
        if status is None:
            raise RejectedCase(
                f"{about}: not read within {SECONDS + SECONDS_PER_MB * megabytes:.0f} s, expected less; damaged, or made to hang readers"
            )
        if os.WIFSIGNALED(status):
            raise RejectedCase(f"{about}: its reader ended by signal {os.WTERMSIG(status)}, expected a volume; damaged, or made to crash readers")
        try:
            with result.open("rb") as stream:
                kind, value = pickle.load(stream)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise RejectedCase(
                f"{about}: its reader left no result ({type(error).__name__}), expected a volume; is the scratch folder full?"
            ) from None
    if kind == "rejected":
        raise RejectedCase(value)
    if kind == "memory":
        raise RejectedCase(f"{about}: needs more memory than the {numa.granted_bytes() / 1e9:.1f} GB there are, expected less; use a larger machine")
    if kind == "failed":
        raise RejectedCase(f"{about}: not readable ({value}), expected a volume; damaged or unsupported")
    return value


def _run(function: Callable[..., Any], args: tuple[Any, ...], result: Path, scratch: str) -> None:
    """The life of the child: never returns."""
    code = 1
    try:
        os.setsid()  # it and what it starts can be ended together
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        tempfile.tempdir = scratch
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + numa.granted_bytes(), resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            found = ("value", function(*args))
        except RejectedCase as error:
            found = ("rejected", str(error))
        except MemoryError:
            found = ("memory", "")
        except Exception as error:  # the text can quote a file's attributes, the place cannot
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = ("failed", f"{type(error).__name__} in {Path(where.filename).name}")
        with result.open("wb") as stream:
            pickle.dump(found, stream, protocol=5)
        code = 0
    finally:
        os._exit(code)


def _wait(child: int, seconds: float) -> int | None:
    """The child's exit status, or None when it lives on after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(POLL_SECONDS)
    return None


def _end(child: int) -> None:
    """End what is left of the child and of the processes it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError, ProcessLookupError):  # that of a child which was waited for already
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            os.kill(child, signal.SIGKILL)  # it had not become the leader of its group yet
            os.waitpid(child, 0)
