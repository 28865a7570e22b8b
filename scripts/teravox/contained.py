"""Reading files from outside in a process of its own, with bounded time and memory: what a file does to a decoder ends there.

It contains crashes, hangs and bombs. It is no sandbox: the process has the rights of the one that starts it.
"""

import contextlib
import errno
import mmap
import os
import pickle
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from teravox import numa
from teravox.errors import RejectedCase, UserError

SECONDS, SECONDS_PER_MB = 40, 1.5  # more than the second reader of a series may take; a MB takes some 0.02 s on an idle machine
POLL_SECONDS = 0.002
ALIGNMENT = 64  # bytes, at which arrays begin: a cache line, enough for every type and instruction
MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EROFS}  # what the machine lacks, whatever the file
ENDING = {signal.SIGTERM, signal.SIGINT}
HANDING_OVER = 75  # exit status of a child that had a result but could not give it away


def call(function: Callable[..., Any], *args: Any, about: str, megabytes: float) -> Any:
    """function(*args) in a forked process. about : begins a message; megabytes : size of what it reads, which sets its time.

    What is returned comes back through memory that both share: its arrays are not copied again. Raises what the function raises when it
    is a RejectedCase, and RejectedCase when it raises something else, dies, takes too long or needs more memory than this process may
    use; UserError when it lacks space on the disk, which is not the file's fault. Scratch files and all processes that the function
    started are ended with it, whatever happens. Must be called where no other thread runs, as every fork.
    """
    seconds = SECONDS + SECONDS_PER_MB * megabytes
    with tempfile.TemporaryDirectory(prefix="teravox-") as scratch, os.fdopen(os.memfd_create("teravox"), "w+b") as shared:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # none may come between the fork and the block that ends the child
        try:
            child = os.fork()
            if child == 0:
                _run(function, args, shared, scratch, seconds, mask)
            try:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.setpgid(child, child)  # as the child does: whichever comes first
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                ended = _wait(child, seconds)
            finally:
                status = _end(child)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if not ended:
            raise RejectedCase(f"{about}: not read within {seconds:.0f} s, expected less; damaged, or made to hang readers")
        if os.WIFSIGNALED(status):
            raise RejectedCase(f"{about}: its reader ended by signal {os.WTERMSIG(status)}, expected a volume; damaged, or made to crash readers")
        if os.WEXITSTATUS(status) == HANDING_OVER:
            raise UserError(f"{about}: its reader could not hand over what it read, expected memory for it; use a larger machine")
        if status or not os.fstat(shared.fileno()).st_size:
            raise RejectedCase(f"{about}: its reader ended with status {os.WEXITSTATUS(status)}, expected a volume; damaged or unsupported")
        kind, value = _receive(shared)
    if kind == "rejected":
        raise RejectedCase(value)
    if kind == "machine":
        raise UserError(f"{about}: while it was read, {Path(scratch).parent}: {value}; make room, or set TMPDIR to another folder")
    if kind == "memory":
        raise RejectedCase(f"{about}: needs more memory than the {numa.granted_bytes() / 1e9:.1f} GB there are, expected less; use a larger machine")
    if kind == "failed":
        raise RejectedCase(f"{about}: not readable ({value}), expected a volume; damaged or unsupported")
    return value


def _run(function: Callable[..., Any], args: tuple[Any, ...], shared: BinaryIO, scratch: str, seconds: float, mask: set[Any]) -> None:
    """The life of the child: never returns. What libraries print is dropped, since it can quote a file's attributes."""
    code = 1
    try:
        os.setpgid(0, 0)  # it and what it starts can be ended together
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        tempfile.tempdir = scratch
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, size + numa.granted_bytes())
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_CPU, int(seconds * len(os.sched_getaffinity(0))) + 1)  # for when the parent is killed before it can end this
        outcome = _outcome(function, args)
        code = HANDING_OVER
        _send(shared, *outcome)
        code = 0
    finally:
        os._exit(code)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bytes, list[memoryview]]:
    """(kind, value) as pickled, and the arrays in it. A text that can quote a file's attributes is not in it, unless it is a RejectedCase's."""
    try:
        arrays: list[pickle.PickleBuffer] = []
        text = pickle.dumps(("value", function(*args)), protocol=5, buffer_callback=arrays.append)
        return text, [array.raw() for array in arrays]
    except MemoryError:
        found = "memory", ""
    except BaseException as error:  # none of this process's own: it has nobody else to tell
        if lack := _lack(error):
            found = "machine", lack
        elif isinstance(error, RejectedCase):
            found = "rejected", str(error)
        else:
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = "failed", f"{type(error).__name__} in {Path(where.filename).name}"
    return pickle.dumps(found), []


def _lack(error: BaseException | None) -> str:
    """What the machine lacks, when that is among the causes of an error; readers take any error for the file's fault."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in MACHINE:
            return os.strerror(error.errno)
        error = error.__cause__ or error.__context__
    return ""


def _send(shared: BinaryIO, text: bytes, arrays: list[memoryview]) -> None:
    pickle.dump((text, [array.nbytes for array in arrays]), shared)
    for array in arrays:
        shared.seek(-shared.tell() % ALIGNMENT, os.SEEK_CUR)
        shared.write(array)
    shared.flush()


def _receive(shared: BinaryIO) -> Any:
    """The pickled value; its arrays lie in the shared memory, which lives as long as they do."""
    shared.seek(0)
    text, sizes = pickle.load(shared)
    whole = memoryview(mmap.mmap(shared.fileno(), 0))
    arrays, start = [], shared.tell()
    for size in sizes:
        start += -start % ALIGNMENT
        arrays.append(whole[start : start + size])
        start += size
    return pickle.loads(text, buffers=arrays)


def _wait(child: int, seconds: float) -> bool:
    """Whether the child ends within so many seconds. It stays a zombie, so that its number is not another process's yet."""
    end = time.monotonic() + seconds
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _end(child: int) -> int:
    """End what is left of the child and of the processes it started. Returns its exit status."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]
