"""Which of several volumes is a channel: rules of the configuration (`channels[].match`), each of which must hold."""

import re
from typing import Any

from teravox.dicom.stacks import Stack
from teravox.errors import RejectedCase

PATTERNS = ("description", "sequence", "image_type")
TEXT_LENGTH = 1024  # of an attribute that a regular expression looks at
MODALITIES = {"CT", "MR", "PT", "NM", "US", "CR", "DX", "MG", "XA", "RF", "OT", "SC"}  # shown in messages; another text may be anything
NO_RULES: dict[str, Any] = {"prefer": "only"}  # of a label, which no rule chooses


def rules_given(rules: dict[str, Any]) -> dict[str, Any]:
    """The rules that ask for something."""
    return {key: value for key, value in rules.items() if value is not None and key != "prefer" and value != []}


def fits(stack: Stack, rules: dict[str, Any]) -> bool:
    """Whether every rule but `volume` and `prefer` holds for a volume. rules : an item of `channels[].match`."""
    attributes = stack.attributes
    for key, asked in rules_given(rules).items():
        if key in {"volume", "bids"}:
            continue
        found = attributes[key]
        if key in PATTERNS:
            if not any(found_in(asked, text) for text in (found, *str(found or "").split("\\"))):
                return False
        elif key == "echo_time_ms":
            if not isinstance(found, int | float) or not asked[0] <= found <= asked[1]:
                return False
        elif key == "modality":
            if str(found or "").upper() != str(asked).upper():
                return False
        elif found != asked:
            return False
    return True


def found_in(pattern: str, text: Any) -> bool:
    """Whether a regular expression is found in a text, whatever the case of its letters; a missing text is an empty one."""
    return re.search(pattern, str(text or "")[:TEXT_LENGTH], re.IGNORECASE) is not None


def choose(candidates: list[Stack], rules: dict[str, Any], source: str) -> Stack:
    """The one volume that fits the rules. candidates : of all series, in each the order of acquisition.

    source : begins a message. Raises RejectedCase when none fits, or several and `prefer` is `only`.
    """
    fitting = [stack for stack in candidates if fits(stack, rules)]
    if rules.get("volume"):
        number = rules["volume"]
        by_series: dict[str, list[Stack]] = {}
        for stack in fitting:
            by_series.setdefault(stack.frames[0].header.series, []).append(stack)
        fitting = [series[number - 1] for series in by_series.values() if len(series) >= number]
    asked = ", ".join(sorted(rules_given(rules)))
    if not fitting:
        raise RejectedCase(f"{source}: none of {listed(candidates)} fits the channel's rules ({asked}), expected one")
    prefer = rules.get("prefer", "only")
    if len(fitting) == 1:
        return fitting[0]
    if all(stack.attributes["slices"] == 1 and not stack.frames[0].header.mosaic for stack in fitting):
        apart = _what_differs(fitting, "nothing says which belong together")
        raise RejectedCase(f"{source}: found {len(fitting)} single slices, no two of one volume, expected slices of one volume; {apart}")
    if prefer == "only":
        hint = f"fit the rules ({asked})" if asked else "and the channel has no rules (channels[].match)"
        raise RejectedCase(f"{source}: found {listed(fitting)} {hint}, expected one volume; {_what_differs(fitting)}{_odd_one(fitting)}")
    if prefer == "most_slices":
        most = max(stack.attributes["slices"] for stack in fitting)
        fitting = [stack for stack in fitting if stack.attributes["slices"] == most]
        if len(fitting) > 1:
            raise RejectedCase(f"{source}: found {listed(fitting)} with {most} slices each, expected one with the most; {_what_differs(fitting)}")
        return fitting[0]
    # Stable: the order of acquisition within a series.
    ordered = sorted(fitting, key=lambda stack: (stack.attributes["when"], stack.attributes["number"], stack.frames[0].header.series))
    return ordered[0 if prefer == "first" else -1]


def listed(stacks: list[Stack]) -> str:
    """How many volumes of how many series, for a message."""
    series = len({stack.frames[0].header.series for stack in stacks})
    return f"{len(stacks)} volume(s) of {series} series"


def _odd_one(stacks: list[Stack]) -> str:
    """The frame that stands alone beside one volume of its series, if there is one."""
    alone = [stack for stack in stacks if len(stack.frames) == 1]
    if len(stacks) != 2 or len(alone) != 1:
        return ""
    frame = alone[0].frames[0]
    lost = (len(frame.position), len(frame.orientation), len(frame.spacing)) != (3, 6, 2)
    why = ": ImagePositionPatient, ImageOrientationPatient or PixelSpacing is missing" if lost else ""
    return f"; {frame.place} stands alone{why}"


def _what_differs(stacks: list[Stack], otherwise: str = "only their order differs: use volume or prefer") -> str:
    """Which rules could tell volumes apart, by name; texts are not shown, since they can hold a patient's data."""
    different = [key for key in stacks[0].attributes if key not in {"when", "number"} and len({str(stack.attributes[key]) for stack in stacks}) > 1]
    shown = []
    for key in different:
        values = sorted({stack.attributes[key] for stack in stacks}, key=lambda value: (value is None, str(value)))
        plain = key not in PATTERNS and len(values) <= 6 and (key != "modality" or set(values) <= MODALITIES)
        shown.append(f"{key} ({', '.join('none' if value is None else str(value) for value in values)})" if plain else key)
    return f"they differ in {', '.join(shown)}" if shown else otherwise
