"""Reading and writing files so that nothing half-written ever stands under a final name."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from teravox.errors import UserError


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Give an error of the file system that names no file (a full disk names none) this one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well, flush it to disk and rename it to `path`.

    The temporary name keeps the ending of `path`, which many writers choose their format by. On any exception the temporary
    file is removed and `path` stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        with named(path):
            yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def require_space(folder: Path, need_bytes: int, what: str) -> None:
    """Refuse before starting when the disk has less than is needed. Raises UserError."""
    free = shutil.disk_usage(folder).free
    if need_bytes > free:
        raise UserError(
            f"{folder}: {free / 1e6:,.1f} MB are free, {what} needs {need_bytes / 1e6:,.1f} MB; make room, or choose a coarser resample.spacing"
        )


CALL_BYTES = 1 << 30  # Linux moves at most 2^31 - 4096 bytes in one call


def transfer(call: Callable[..., int], descriptor: int, view: memoryview, position: int) -> None:
    """Fill a buffer of bytes from a file (call : os.preadv), or write it there (os.pwritev), at a position.

    Raises EOFError when the file ends before.
    """
    while view:
        moved = call(descriptor, [view[:CALL_BYTES]], position)
        if moved <= 0:
            raise EOFError("ends before its last byte")
        view, position = view[moved:], position + moved


def canonical_json(value: Any) -> str:
    """The one spelling of a JSON value: sorted keys, no spaces, no NaN. Used wherever JSON is compared or hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON with sorted keys; NaN and infinity are refused."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises UserError when it is missing or not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: missing; run the stage that makes it, or snakemake --cores all") from None
    except (OSError, ValueError, RecursionError) as error:  # not UTF-8, no JSON, a number of thousands of digits, nested without end
        raise UserError(f"{path}: not readable as JSON ({error}); delete it and run snakemake --cores all") from None
