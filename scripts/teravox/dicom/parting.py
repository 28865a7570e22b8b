"""The volumes of a series: its frames parted by what differs between volumes, in the order of acquisition."""

import itertools
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from teravox.dicom.frames import CONSTANT, TIMES, VOLUME, Frame

ORIENTATION_ATOL = 1e-4  # direction cosines written by one scanner for one series
SPACING_RTOL = 1e-4  # of PixelSpacing within a volume
PLACE_ATOL_MM = 0.011  # positions rounded to two decimals can be 0.01 mm apart and be one
PAUSE_RATIO = 2  # between volumes with lost slices the scanner must have paused for longer than this times any pause within
# A frame of one volume is always of another than a frame that differs in these.
ALWAYS = ("Rows", "Columns", "SamplesPerPixel", "EchoTime", "b_value")
# What else can tell volumes at one place apart, in the order in which it is tried.
APART = (
    *VOLUME,
    *(name for name in CONSTANT if name not in ALWAYS),
    "SequenceName",
    "SeriesNumber",
    "SeriesDescription",
    "ProtocolName",
)
STEPWISE = ("CardiacPhase", "InversionTime", "TriggerTime")  # differ between slices too, as heartbeats do: their order counts
# Which volume was acquired first: by these, in their order, as far as every volume of the series has them.
SEQUENCE = ("TemporalPosition", *TIMES[:-1], "AcquisitionNumber", *STEPWISE, "EchoTime", "FlipAngle", "b_value", TIMES[-1], "InstanceNumber")


def value_of(frame: Frame, name: str) -> Any:
    """A frame's value of an attribute that any of its tables holds."""
    for table in (frame.volume, frame.constant, frame.header.once):
        if name in table:
            return table[name]
    raise KeyError(name)


def parted(frames: list[Frame]) -> list[list[Frame]]:
    """The frames of one series as volumes, in the order of acquisition: the number of a volume counts from here.

    Frames of another size, spacing, orientation, echo time or b-value are always of another volume. Where a position is still held
    more than once, the attributes of APART are tried in their order, then the times; what no attribute parts stays together.
    """
    exact: dict[tuple[Any, ...], list[Frame]] = defaultdict(list)
    for frame in frames:
        lengths = len(frame.orientation), len(frame.spacing), len(frame.position)
        exact[*lengths, *(value_of(frame, name) for name in ALWAYS)].append(frame)
    groups = [group for members in exact.values() for group in _alike(members)]
    return in_sequence([part for group in groups for part in _by_attributes(group)])


def in_sequence(parts: list[list[Frame]]) -> list[list[Frame]]:
    """Volumes in the order of acquisition, whatever the order and the names of their files."""

    def started(part: list[Frame], name: str) -> float | None:
        values = [value_of(frame, name) for frame in part]
        return min(values) if all(isinstance(value, int | float) for value in values) else None

    starts = [[started(part, name) for part in parts] for name in SEQUENCE]
    known = [column for column in starts if None not in column]

    def key(number: int) -> tuple[Any, ...]:
        part = parts[number]
        texts = [str(value_of(part[0], name)) for name in APART]
        return tuple(column[number] for column in known), min(frame.number for frame in part), texts, min(frame.header.instance for frame in part)

    return [parts[number] for number in sorted(range(len(parts)), key=key)]


def _alike(frames: list[Frame]) -> list[list[Frame]]:
    """Frames by orientation and spacing, within tolerance of the first of their group."""
    groups: list[list[Frame]] = []
    firsts = np.empty((len(frames), len(frames[0].orientation) + len(frames[0].spacing)))
    tolerance = np.array([ORIENTATION_ATOL] * len(frames[0].orientation) + [0.0] * len(frames[0].spacing))
    for frame in frames:
        row = np.array([*frame.orientation, *frame.spacing])
        allowed = tolerance + np.where(tolerance > 0, 0, SPACING_RTOL * np.abs(row))
        same = np.flatnonzero((np.abs(firsts[: len(groups)] - row) <= allowed).all(axis=1))
        if same.size:
            groups[same[0]].append(frame)
        else:
            firsts[len(groups)] = row
            groups.append([frame])
    return groups


def _places(frames: list[Frame]) -> list[int]:
    """For each frame the number of its position along the normal: equal where they are less than PLACE_ATOL_MM apart."""
    if any(len(frame.position) != 3 for frame in frames) or len(frames[0].orientation) != 6:
        return list(range(len(frames)))
    positions = np.array([frame.position for frame in frames])
    normal = np.cross(frames[0].orientation[:3], frames[0].orientation[3:])
    heights = positions @ normal
    order = np.argsort(heights, kind="stable")
    steps = np.diff(heights[order]) >= PLACE_ATOL_MM
    numbers = np.empty(len(frames), int)
    numbers[order] = np.concatenate([[0], np.cumsum(steps)])
    return numbers.tolist()


def _by_attributes(frames: list[Frame]) -> list[list[Frame]]:
    places = _places(frames)
    most = max(Counter(places).values())
    if most == 1:
        return [frames]
    for name in APART:
        parts = _grouped(frames, name)
        if len(parts) == 1:
            continue
        if name in STEPWISE and (ranked := _by_rank([value_of(frame, name) for frame in frames], places)) and _rising(frames, ranked, places):
            parts = ranked
        held = [Counter(places[index] for index in part) for part in parts]
        one_each = len(parts) == most and all(max(one.values()) == 1 for one in held)  # a slice may be missing from some
        if one_each or all(set(one) == set(held[0]) for one in held) or (name == "StackID" and all(len(part) > 1 for part in parts)):
            return [finer for part in parts for finer in _by_attributes([frames[index] for index in part])]
    for name in TIMES:
        times = [frame.volume[name] for frame in frames]
        if None not in times and (found := _by_time(times, places) or _by_pauses(times, places, most)):
            return [[frames[index] for index in part] for part in found]
    return [frames]


def _grouped(frames: list[Frame], name: str) -> list[list[int]]:
    """Indices of frames by the value of an attribute."""
    parts: dict[Any, list[int]] = defaultdict(list)
    for index, frame in enumerate(frames):
        parts[value_of(frame, name)].append(index)
    return list(parts.values())


def _by_rank(values: list[Any], places: list[int]) -> list[list[int]]:
    """The n-th frame of every position to the n-th part, when every position holds as many frames, of different values; else nothing."""
    count = Counter(places)
    if len(set(count.values())) != 1 or not all(isinstance(value, int | float) for value in values):
        return []
    if len(set(zip(places, values, strict=True))) != len(values):
        return []
    parts: list[list[int]] = [[] for _ in range(count[places[0]])]
    seen: Counter[int] = Counter()
    for index in sorted(range(len(values)), key=lambda index: values[index]):
        parts[seen[places[index]]].append(index)
        seen[places[index]] += 1
    return [sorted(part) for part in parts]


def _rising(frames: list[Frame], parts: list[list[int]], places: list[int]) -> bool:
    """Whether no clock and no count of the frames speaks against an order of parts: at no position does one fall from part to part."""
    for name in (*TIMES[:-1], "InstanceNumber"):
        values = [value_of(frame, name) for frame in frames]
        if not all(isinstance(value, int | float) for value in values):
            continue
        columns = [{places[index]: values[index] for index in part} for part in parts]
        if any(before[place] > after[place] for before, after in itertools.pairwise(columns) for place in before):
            return False
    return True


def _by_time(times: list[float], places: list[int]) -> list[list[int]]:
    """`_by_rank`, when no part begins before the one before it ended."""
    parts = _by_rank(times, places)
    spans = [[times[index] for index in part] for part in parts]
    return parts if all(max(before) < min(after) for before, after in itertools.pairwise(spans)) else []


def _by_pauses(times: list[float], places: list[int], most: int) -> list[list[int]]:
    """Frames between the longest pauses, as many parts as the fullest position holds frames, when no other pause comes near; else nothing.

    So volumes of which some miss a slice can be told apart: without a pause nothing shows to which of two a frame belongs.
    """
    order = sorted(range(len(times)), key=lambda index: times[index])
    pauses = np.diff([times[index] for index in order])
    longest = np.sort(pauses)[::-1]
    if longest[most - 2] <= PAUSE_RATIO * (longest[most - 1] if len(longest) >= most else 0):
        return []
    cuts = [0, *(np.flatnonzero(pauses >= longest[most - 2]) + 1).tolist(), len(order)]
    parts = [sorted(order[begin:end]) for begin, end in itertools.pairwise(cuts)]
    return parts if all(len({places[index] for index in part}) == len(part) for part in parts) else []
