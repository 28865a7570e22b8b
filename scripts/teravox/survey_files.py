"""The headers of many files, read in several processes that a hostile file can end or hold up without harm to the others."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from teravox import contained
from teravox.dicom import headers, sources
from teravox.dicom.headers import Header
from teravox.errors import RejectedCase

CHUNK_FILES = 100  # read by a process at a time: some 50 ms
CHUNK_SECONDS = 300  # 3 s for each file of a slow network share
AHEAD = 4  # chunks given to each process: what is read and not yet taken costs memory
SHARED_OF_HEADER = ("kind", "sop_class", "syntax", "once")
SHARED_OF_FRAME = ("orientation", "spacing", "slope", "intercept", "thickness", "step", "constant", "volume")


@dataclasses.dataclass(frozen=True)
class Other:
    """A file that belongs to no volume. damaged : it may be a lost slice, of the study and series named or of one beside it."""

    path: Path
    reason: str
    damaged: bool = False
    study: str = ""
    series: str = ""


Chunk = list[Header | Other]


def workers() -> int:
    """Processes that read headers: one per core that this process may use."""
    return len(os.sched_getaffinity(0))


def read(paths: list[Path], workers: int) -> Iterator[Chunk]:
    """The header of each file, or why it has none, in the order of the files. What is equal among them is held once."""
    chunks = [paths[start : start + CHUNK_FILES] for start in range(0, len(paths), CHUNK_FILES)]
    known: dict[Any, Any] = {}
    for chunk in map(_read, chunks) if workers == 1 or len(chunks) < 2 else _in_processes(chunks, workers):
        _share(chunk, known, ("once",), ("constant",))  # the others are many and small
        yield chunk


def _in_processes(chunks: list[list[Path]], workers: int) -> Iterator[Chunk]:
    waiting = collections.deque(chunks)
    while waiting:
        stuck: list[Path] = []
        flying: collections.deque[tuple[list[Path], concurrent.futures.Future[Chunk]]] = collections.deque()
        pool = concurrent.futures.ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
        )
        try:
            while waiting or flying:
                while waiting and len(flying) < AHEAD * workers:
                    flying.append((waiting[0], pool.submit(_read, waiting[0])))
                    waiting.popleft()
                done = flying[0][1].result(CHUNK_SECONDS)
                flying.popleft()
                yield done
        except (BrokenProcessPool, TimeoutError):  # by a file of the first chunk, or of one of the next, which will be the first then
            waiting.extendleft(reversed([chunk for chunk, _ in flying]))
            stuck = waiting.popleft()
        finally:
            _end(pool)
        if stuck:
            yield _read_alone(stuck)


def _end(pool: concurrent.futures.ProcessPoolExecutor) -> None:
    """End a pool at once, whatever its processes do."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        with contextlib.suppress(ValueError):  # closed already
            process.kill()
            process.join()


def _read(paths: list[Path]) -> Chunk:
    found: Chunk = []
    for path in paths:
        try:
            reason = "" if headers.is_dicom_file(path) else sources.harmless(path)
            found.append(Other(path, reason) if reason else headers.read_header(path))
        except RejectedCase as error:
            found.append(Other(path, str(error).removeprefix(f"{path}: "), True, *headers.read_uids(path)))
        except OSError as error:
            found.append(Other(path, f"not readable ({error.strerror})", True))
    _share(found, {}, SHARED_OF_HEADER, SHARED_OF_FRAME)
    return found


def _read_alone(paths: list[Path]) -> Chunk:
    found: Chunk = []
    for path in paths:
        try:
            found += contained.call(_read, [path], about=str(path), megabytes=1)
        except RejectedCase as error:
            found.append(Other(path, str(error).removeprefix(f"{path}: "), True))
    return found


def _share(found: Chunk, known: dict[Any, Any], of_header: tuple[str, ...], of_frame: tuple[str, ...]) -> None:
    """One object for values that are equal in many headers: a hundred thousand of them are then small. known : what was seen before."""
    seen: dict[int, Any] = {}  # by identity, which is quicker to tell

    def one(value: Any) -> Any:
        if id(value) not in seen:
            key = (*value, *value.values()) if isinstance(value, dict) else value
            seen[id(value)] = known.setdefault((type(value), key), value)
        return seen[id(value)]

    for header in found:
        if isinstance(header, Header):
            for name in of_header:
                setattr(header, name, one(getattr(header, name)))
            for frame in header.frames:
                for name in of_frame:
                    object.__setattr__(frame, name, one(getattr(frame, name)))
