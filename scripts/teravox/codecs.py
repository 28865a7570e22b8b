"""Compression inside a block: what a codec makes of bytes depends on nothing but the bytes and its library's version."""

import importlib.metadata
import zlib
from collections.abc import Callable

import numpy as np
from isal import isal_zlib
from numcodecs import blosc

from teravox.errors import UserError

# Blosc's own threads put its parts into the order in which they were done, and so give other bytes each time.
blosc.use_threads = False

GZIP_LEVEL, GZIP_WINDOW = 1, 31  # fastest; 31 = 15 bits with gzip's header, which zlib fills without name and time
BLOSC_LEVEL = 5


def _gzip(array: np.ndarray) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW)  # not ISA-L, whose result may differ between processors
    return packer.compress(array.data) + packer.flush()


def _gunzip(data: bytes, out: np.ndarray) -> None:
    unpacker = isal_zlib.decompressobj(wbits=GZIP_WINDOW)
    found = unpacker.decompress(data, out.nbytes + 1)
    if len(found) != out.nbytes or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"{len(found)} bytes")
    out.reshape(-1).view(np.uint8)[:] = np.frombuffer(found, np.uint8)


def _blosc(array: np.ndarray) -> bytes:
    return blosc.compress(array, b"lz4", BLOSC_LEVEL, blosc.BITSHUFFLE)


def _unblosc(data: bytes, out: np.ndarray) -> None:
    if len(data) < 16 or int.from_bytes(data[4:8], "little") != out.nbytes or int.from_bytes(data[12:16], "little") != len(data):
        raise ValueError("another size")
    blosc.decompress(data, out)


CODECS: dict[str, tuple[Callable[[np.ndarray], bytes], Callable[[bytes, np.ndarray], None]]] = {
    "gzip": (_gzip, _gunzip),
    "blosc": (_blosc, _unblosc),
}


def library(codec: str) -> str:
    """What encodes, with its version; "none" for no compression."""
    return {
        "none": "none",
        "gzip": f"zlib {zlib.ZLIB_RUNTIME_VERSION}",
        "blosc": f"numcodecs {importlib.metadata.version('numcodecs')}",
    }[codec]


def encode(codec: str, array: np.ndarray) -> bytes:
    """The bytes of a C-contiguous array, compressed. codec : "gzip" (zlib, level 1) or "blosc" (LZ4 after bit shuffle)."""
    return CODECS[codec][0](array)


def decode(codec: str, data: bytes, out: np.ndarray) -> None:
    """Undo `encode` into a C-contiguous array of the right size. Raises UserError when the data is damaged or of another size."""
    try:
        CODECS[codec][1](data, out)
    except (ValueError, RuntimeError, zlib.error, isal_zlib.error) as error:  # type: ignore[misc]  # isal's stubs say no class
        raise UserError(f"{codec} data do not decode to {out.nbytes} bytes ({' '.join(str(error).split())})") from None
