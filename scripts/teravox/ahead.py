"""Work done ahead by threads, in order, and never more of it than a number of bytes."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def ahead(jobs: Iterable[tuple[int, Callable[[], Result]]], workers: int, budget_bytes: float) -> Generator[Result, None, None]:
    """The results of jobs (bytes of the result, function), in order, computed by `workers` threads while the caller is busy.

    What is computed, or being computed, and not yet handed out is at most `budget_bytes`, or a single result that is larger.
    A job's error is raised where its result would come, and ends it.
    """
    source, waiting = iter(jobs), deque[tuple[int, Future[Result]]]()
    upcoming, held = next(source, None), 0
    pool = ThreadPoolExecutor(workers)

    def start() -> None:
        nonlocal upcoming, held
        while upcoming is not None and (not waiting or held + upcoming[0] <= budget_bytes):
            waiting.append((upcoming[0], pool.submit(upcoming[1])))
            held += upcoming[0]
            upcoming = next(source, None)

    try:
        start()
        while waiting:
            waiting[0][1].result()
            size, future = waiting.popleft()
            held -= size
            start()  # before the caller turns to what it gets
            result = future.result()
            del future  # nothing here holds the result while the caller has it
            yield result
            del result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
