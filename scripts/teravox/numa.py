"""Which cores and memory a process may use, and where to put it: NUMA topology, memory granted, and numactl's arguments."""

import dataclasses
import json
import os
import re
from pathlib import Path

from teravox.errors import UserError


@dataclasses.dataclass(frozen=True)
class Node:
    """A NUMA node: its allowed logical cores, and its total and free memory in bytes."""

    number: int
    cores: tuple[int, ...]
    total_bytes: int
    free_bytes: int


def parse_list(text: str) -> list[int]:
    """The kernel's list format: parse_list("0-1,3") -> [0, 1, 3]."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def allowed(status: str, field: str) -> list[int] | None:
    """`Cpus_allowed_list` or `Mems_allowed_list` out of the text of /proc/self/status; None when it is not there."""
    match = re.search(rf"^{field}:\s*(\S*)$", status, re.MULTILINE)
    return parse_list(match.group(1)) if match else None


def topology(root: Path = Path("/sys/devices/system/node"), status: str | None = None) -> list[Node]:
    """The nodes that this process may take memory from, with the cores it may run on. [] when the kernel shows none."""
    if status is None:
        status = Path("/proc/self/status").read_text()
    cores, mems = allowed(status, "Cpus_allowed_list"), allowed(status, "Mems_allowed_list")
    nodes = []
    for path in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        number = int(path.name[4:])
        if mems is not None and number not in mems:
            continue
        memory = {}
        for line in (path / "meminfo").read_text().splitlines() if (path / "meminfo").exists() else []:
            match = re.match(rf"Node {number} (MemTotal|MemFree|FilePages|Shmem):\s+(\d+) kB", line)
            if match:
                memory[match.group(1)] = int(match.group(2)) * 1024
        own = [core for core in parse_list((path / "cpulist").read_text()) if cores is None or core in cores]
        free = memory.get("MemFree", 0) + memory.get("FilePages", 0) - memory.get("Shmem", 0)  # the page cache gives way
        nodes.append(Node(number, tuple(own), memory.get("MemTotal", 0), min(free, memory.get("MemTotal", 0))))
    return [node for node in nodes if node.total_bytes]


def choose(nodes: list[Node], need_bytes: int, policy: str) -> tuple[list[str], str]:
    """numactl's arguments for a process that needs `need_bytes`, and the reason in words; no arguments means no numactl.

    policy : "none"; "bind" (cores and memory of one node); "interleave" (all allowed nodes); "auto" binds when one node has
    the memory free, else interleaves. Raises UserError for an unknown policy or a node that is too small for "bind".
    """
    if policy not in ("auto", "none", "bind", "interleave"):
        raise UserError(f"numa.policy: '{policy}', expected auto, none, bind or interleave")
    if policy == "none":
        return [], "policy none"
    if not nodes:
        return [], "the kernel shows no NUMA node"
    with_cores = [node for node in nodes if node.cores]
    largest = max(with_cores, key=lambda node: (node.free_bytes, -node.number), default=None)
    if policy != "interleave" and largest is not None and largest.free_bytes >= need_bytes:
        return [f"--cpunodebind={largest.number}", f"--membind={largest.number}"], (
            f"the predicted peak of {need_bytes / 1e6:.0f} MB fits the {largest.free_bytes / 1e6:.0f} MB free on node {largest.number}"
        )
    if policy == "bind":
        raise UserError(f"numa.policy bind: no node has the predicted {need_bytes / 1e6:.0f} MB free; use auto or interleave")
    listed = ",".join(str(node.number) for node in nodes)
    reason = "policy interleave" if policy == "interleave" else f"no single node has the predicted {need_bytes / 1e6:.0f} MB free"
    return [f"--interleave={listed}"], reason


def granted_bytes(root: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Memory this process can still take: what the machine has available, and less where a cgroup (v2 or v1) sets a limit."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    if not match:
        raise UserError(f"{meminfo}: MemAvailable is missing, expected a Linux kernel of 3.14 or later")
    granted: float = int(match.group(1)) * 1024
    own = [line.split(":", 2)[2].strip("/") for line in membership.read_text().splitlines()] if membership.exists() else []
    for relative in {"", *own}:
        folders = [root / relative, root / "memory" / relative]  # v2, v1
        for folder in [parent for start in folders for parent in (start, *start.parents) if parent.is_relative_to(root)]:
            granted = min(granted, _headroom(folder, "memory.max", "memory.current"))
            granted = min(granted, _headroom(folder, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    return max(int(granted), 0)


def _headroom(folder: Path, limit: str, usage: str) -> float:
    """A cgroup's limit less what it uses; the page cache, which its usage includes, gives way."""
    try:
        text = (folder / limit).read_text().strip()
        return float("inf") if text == "max" else int(text) - int((folder / usage).read_text()) + _page_cache(folder / "memory.stat")
    except (OSError, ValueError):
        return float("inf")


def _page_cache(stat: Path) -> int:
    """Bytes of cached files of a cgroup and those below it, from its memory.stat (v1 counts those below under total_...)."""
    try:
        counts = dict(line.split() for line in stat.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return sum(int(counts.get(f"total_{name}", counts.get(name, 0))) for name in ("active_file", "inactive_file"))


def require_memory(need_bytes: int, what: str) -> int:
    """Refuse before starting when the memory granted is less than needed. Returns the bytes granted. Raises UserError."""
    granted = granted_bytes()
    if need_bytes > granted:
        found = f"{what} needs {need_bytes / 1e9:.2f} GB, {granted / 1e9:.2f} GB are available"
        raise UserError(f"{found}; use a coarser resample.spacing, fewer train.filters or more memory")
    return granted


def placement() -> dict[str, object]:
    """What scripts/pin.py did for this process, from its environment; unpinned when it was not started through it."""
    text = os.environ.get("TERAVOX_PINNING")
    return dict(json.loads(text)) if text else {"pinned": False, "reason": "not started through scripts/pin.py"}
