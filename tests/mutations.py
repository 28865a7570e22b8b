"""Ways to damage a file: each takes its bytes and a random generator, and gives other bytes."""

import struct
from collections.abc import Callable

import numpy as np

Random = np.random.Generator
Mutation = Callable[[bytes, Random], bytes]

HEAD = 2048  # half of all damage goes into the first bytes, where most of what a reader looks at lies
LONG = {b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"UC", b"UN", b"UR", b"UT", b"SV", b"UV"}  # with a length of four bytes (PS3.5 7.1.2)
VRS = [
    *sorted(LONG),
    b"AE",
    b"AS",
    b"AT",
    b"CS",
    b"DA",
    b"DS",
    b"DT",
    b"FD",
    b"FL",
    b"IS",
    b"LO",
    b"PN",
    b"SH",
    b"SL",
    b"SS",
    b"TM",
    b"UI",
    b"US",
    b"ZZ",
]
NUMBERS = [
    0,
    1,
    2,
    3,
    7,
    8,
    127,
    128,
    255,
    256,
    2**15 - 1,
    2**15,
    2**16 - 1,
    2**16,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 2,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
]
TEXTS = ["", "0", "-1", "1", "2", "1e400", "-0.0", "nan", "inf", "1e-30", "1e30", "9" * 16, "0.5", "4294967296", "x", "1\\2\\3", "1 2 3", "\0", "\n"]


def _place(data: bytes, random: Random, room: int = 1) -> int:
    """An offset with `room` bytes behind it."""
    last = max(len(data) - room, 0)
    return int(random.integers(0, min(last, HEAD) + 1 if random.random() < 0.5 else last + 1))


def _put(data: bytes, start: int, part: bytes) -> bytes:
    return data[:start] + part + data[start + len(part) :]


def bits(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 9))):
        changed[_place(data, random)] ^= 1 << int(random.integers(8))
    return bytes(changed)


def run(data: bytes, random: Random) -> bytes:
    count = int(random.integers(1, 17))
    fill = [random.bytes(count), bytes(count), b"\xff" * count, b" " * count][int(random.integers(4))]
    return _put(data, _place(data, random, count), fill)[: len(data)]


def truncate(data: bytes, random: Random) -> bytes:
    return data[: _place(data, random)]


def insert(data: bytes, random: Random) -> bytes:
    place, count = _place(data, random), int(random.integers(1, 65))
    return data[:place] + random.bytes(count) + data[place:] if random.random() < 0.5 else data[:place] + data[place + count :]


def length(data: bytes, random: Random) -> bytes:
    """An extreme number where a length, a count or an offset may stand."""
    order, code = "<>"[int(random.integers(2))], "HIQ"[int(random.integers(3))]
    size = struct.calcsize(code)
    value = int(random.choice([len(data), len(data) - 1, *range(len(NUMBERS))]))
    number = value if value >= len(NUMBERS) else NUMBERS[value]
    return _put(data, _place(data, random, size), struct.pack(order + code, number % 2 ** (8 * size)))


def swap(data: bytes, random: Random) -> bytes:
    """Two blocks of one length exchanged, or one written over the other."""
    count = int(random.integers(1, max(len(data) // 4, 2)))
    first, second = sorted(_place(data, random, count) for _ in range(2))
    if random.random() < 0.3 or second < first + count:
        return _put(data, second, data[first : first + count])[: len(data)]
    return data[:first] + data[second : second + count] + data[first + count : second] + data[first : first + count] + data[second + count :]


def repeat(data: bytes, random: Random) -> bytes:
    count = int(random.integers(1, max(len(data) // 2, 2)))
    place = _place(data, random, count)
    return data[: place + count] + data[place:]


def noise(data: bytes, random: Random) -> bytes:
    """Random bytes, behind as much of the file as makes readers take them for one."""
    kept = int(random.choice([0, 4, 16, 132, 348, 352, 540, 1000]))
    return data[:kept] + random.bytes(int(random.integers(0, 4000)))


def join(data: bytes, random: Random, other: bytes) -> bytes:
    """Two files as one, in either order, or the beginning of one and the end of the other."""
    kind = int(random.integers(3))
    if kind == 2:
        return data[: _place(data, random)] + other[_place(other, random) :]
    return data + other if kind else other + data


def elements(data: bytes) -> list[tuple[int, bytes, int, int, int]]:
    """(offset, VR, offset of the length, offset of the value, length) of the elements of an explicit little-endian file, nested ones too."""
    found, place = [], 132
    while place + 8 <= len(data):
        vr = data[place + 4 : place + 6]
        if data[place : place + 2] == b"\xfe\xff":  # an item, or the end of one: no VR
            place += 8
            continue
        if not (vr.isalpha() and vr.isupper()):
            break
        at = place + (8 if vr in LONG else 6)
        value = at + (4 if vr in LONG else 2)
        size = int.from_bytes(data[at:value], "little")
        found.append((place, vr, at, value, size))
        place = value if vr == b"SQ" else value + (size if size != 2**32 - 1 else len(data))
    return found


def element(data: bytes, random: Random) -> bytes:
    """One attribute: another value, VR, length, or tag; without it, or twice."""
    known = elements(data)
    if not known:
        return bits(data, random)
    place, vr, at, value, size = known[int(random.integers(len(known)))]
    size = min(size, len(data) - value)
    kind = int(random.integers(7))
    if kind == 0:
        return data[: place + 4] + VRS[int(random.integers(len(VRS)))] + data[place + 6 :]
    if kind == 1:
        number = NUMBERS[int(random.integers(len(NUMBERS)))] if random.random() < 0.5 else size + int(random.integers(-4, 5))
        return _put(data, at, (number % 2 ** (8 * (value - at))).to_bytes(value - at, "little"))
    if kind == 2:
        return data[:place] + data[value + size :]
    if kind == 3:
        return data[: value + size] + data[place:]
    if kind == 4:
        return _put(data, place, struct.pack("<HH", *random.integers(0, 2**16, 2).tolist()))
    if vr in LONG or vr in {b"US", b"SS", b"UL", b"SL", b"FL", b"FD", b"AT"}:
        count = min(size, 8)
        return _put(data, value, (NUMBERS[int(random.integers(len(NUMBERS)))] % 2 ** (8 * count)).to_bytes(count, "little"))
    text = TEXTS[int(random.integers(len(TEXTS)))].encode()
    if kind == 5:  # as long as before, so that the file stays well-formed
        digits = bytes(random.choice(list(b"0123456789.-\\ "), size).astype(np.uint8))
        return _put(data, value, digits if random.random() < 0.5 else text.ljust(size)[:size])
    text += b" " * (len(text) % 2)
    return data[:at] + len(text).to_bytes(value - at, "little") + text + data[value + size :]


NIFTI1 = [  # (offset, struct code, count) of the fields that matter
    *((0, "i", 1), (40, "h", 8), (68, "h", 1), (70, "h", 1), (72, "h", 1), (76, "f", 8), (108, "f", 1), (112, "f", 1), (116, "f", 1)),
    *((123, "B", 1), (252, "h", 1), (254, "h", 1), (256, "f", 6), (280, "f", 12), (344, "B", 4), (348, "B", 4)),
]
NIFTI2 = [
    *((0, "i", 1), (4, "B", 8), (12, "h", 1), (14, "h", 1), (16, "q", 8), (104, "d", 8), (168, "q", 1), (176, "d", 1), (184, "d", 1)),
    *((344, "i", 1), (348, "i", 1), (352, "d", 6), (400, "d", 12), (500, "i", 1), (540, "B", 4)),
]
REALS = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 1e-30, 1e30, 3e38, float("nan"), float("inf"), 352.0, 540.0, 1e9]


def nifti(data: bytes, random: Random) -> bytes:
    """One number of the header: an extreme one, or one near it."""
    offset, code, count = (NIFTI2 if data[:1] == b"\x1c" else NIFTI1)[int(random.integers(15))]
    offset += struct.calcsize(code) * int(random.integers(count))
    size = struct.calcsize(code)
    if code in "fd":
        return _put(data, offset, struct.pack("<" + code, REALS[int(random.integers(len(REALS)))]))
    number = NUMBERS[int(random.integers(len(NUMBERS)))]
    if random.random() < 0.5:
        number = int.from_bytes(data[offset : offset + size], "little") + int(random.integers(-3, 4))
    return _put(data, offset, (number % 2 ** (8 * size)).to_bytes(size, "little"))


def text(data: bytes, random: Random) -> bytes:
    """One line of a text header: another value, twice, gone, or exchanged with another line."""
    end = data.find(b"\n\n")
    end = data.find(b"\n", max(data.find(b"ElementDataFile"), 0)) if end < 0 else end
    lines, rest = data[:end].split(b"\n"), data[end:]
    number, other = (int(index) for index in random.integers(len(lines), size=2))
    kind = int(random.integers(5))
    if kind == 0:
        lines[number], lines[other] = lines[other], lines[number]
    elif kind == 1:
        lines.insert(other, lines[number])
    elif kind == 2:
        del lines[number]
    else:
        separator = b"=" if b"=" in lines[number] else b":"
        key, _, value = lines[number].partition(separator)
        parts = value.split() or [b""]
        chosen = TEXTS[int(random.integers(len(TEXTS)))].encode() if kind == 3 else str(NUMBERS[int(random.integers(len(NUMBERS)))]).encode()
        parts[int(random.integers(len(parts)))] = chosen
        lines[number] = key + separator + b" " + b" ".join(parts)
    return b"\n".join(lines) + rest


GENERAL: dict[str, Mutation] = {mutation.__name__: mutation for mutation in (bits, run, truncate, insert, length, swap, repeat, noise)}
