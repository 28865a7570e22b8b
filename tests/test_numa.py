"""NUMA nodes, memory granted and pinning, with made-up machines."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from teravox import numa
from teravox.errors import UserError

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
GB = 10**9


def machine(root: Path, nodes: dict[int, tuple[str, int, int]], shared_kb: int = 0) -> Path:
    """nodes : number -> (cpulist, total kB, free kB); a tenth of the total is page cache."""
    for number, (cpus, total, free) in nodes.items():
        folder = root / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
        lines = {"MemTotal": total, "MemFree": free, "MemUsed": total - free, "FilePages": total // 10, "Shmem": shared_kb}
        (folder / "meminfo").write_text("".join(f"Node {number} {key}:    {value} kB\n" for key, value in lines.items()))
    (root / "possible").write_text("0-3\n")
    return root


def status(cpus: str, mems: str) -> str:
    return f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\nMems_allowed:\t1\nMems_allowed_list:\t{mems}\n"


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-1,3", [0, 1, 3]), ("1", [1]), ("", []), ("\n", []), ("0-3,8-9\n", [0, 1, 2, 3, 8, 9]), ("10,2", [10, 2])]
)
def test_the_kernel_s_lists(text: str, numbers: list[int]) -> None:
    assert numa.parse_list(text) == numbers


def test_fields_of_the_status() -> None:
    assert numa.allowed(status("0-1,3", "1"), "Mems_allowed_list") == [1]
    assert numa.allowed(status("0-1,3", "1"), "Cpus_allowed_list") == [0, 1, 3]
    assert numa.allowed(status("", ""), "Mems_allowed_list") == []
    assert numa.allowed("Name:\tx\n", "Mems_allowed_list") is None


@pytest.mark.parametrize("count", [1, 2, 4])
def test_nodes_are_read(tmp_path: Path, count: int) -> None:
    root = machine(tmp_path / "node", {n: (f"{2 * n}-{2 * n + 1}", 1000 + n, 500) for n in range(count)}, shared_kb=30)
    found = numa.topology(root, status("0-7", "0-3"))
    assert [node.number for node in found] == list(range(count))
    for n, node in enumerate(found):
        assert node.cores == (2 * n, 2 * n + 1)
        assert node.total_bytes == (1000 + n) * 1024
        assert node.free_bytes == (500 + 100 - 30) * 1024


def test_ten_nodes_come_in_order(tmp_path: Path) -> None:
    root = machine(tmp_path / "node", {n: (str(n), 10, 10) for n in range(12)})
    assert [node.number for node in numa.topology(root, status("0-11", "0-11"))] == list(range(12))


def test_a_cpuset_and_empty_nodes_are_respected(tmp_path: Path) -> None:
    root = machine(tmp_path / "node", {0: ("0-3", 1000, 1), 1: ("4-5,7", 1000, 900), 2: ("", 1000, 900), 3: ("8-9", 0, 0)})
    (root / "node4").mkdir()
    (root / "node4" / "cpulist").write_text("10\n")  # a node whose memory the kernel does not show
    found = numa.topology(root, status("2,5-20", "0-4"))
    assert [(node.number, node.cores) for node in found] == [(0, (2,)), (1, (5, 7)), (2, ())]
    assert found[1].free_bytes == found[1].total_bytes  # never more than there is
    assert [node.number for node in numa.topology(root, status("0-20", "1"))] == [1]


def test_no_numa(tmp_path: Path) -> None:
    assert numa.topology(tmp_path / "none", status("0", "0")) == []


def node(number: int, free: int, cores: tuple[int, ...] = (0,)) -> numa.Node:
    return numa.Node(number, cores, 100 * GB, free)


NODES = [node(0, 10 * GB), node(1, 30 * GB), node(2, 90 * GB, ())]


@pytest.mark.parametrize(("nodes", "need", "policy", "arguments"), [
    (NODES, 20 * GB, "auto", ["--cpunodebind=1", "--membind=1"]),
    (NODES, 30 * GB, "auto", ["--cpunodebind=1", "--membind=1"]),
    (NODES, 31 * GB, "auto", ["--interleave=0,1,2"]),
    (NODES, 20 * GB, "bind", ["--cpunodebind=1", "--membind=1"]),
    (NODES, 1, "interleave", ["--interleave=0,1,2"]),
    (NODES, 1, "none", []),
    ([], 1, "auto", []), ([], 1, "bind", []), ([], 1, "interleave", []),
    ([node(0, GB), node(1, GB)], 1, "auto", ["--cpunodebind=0", "--membind=0"]),
    ([node(3, 5 * GB, ())], 1, "auto", ["--interleave=3"]),
])  # fmt: skip
def test_placement(nodes: list[numa.Node], need: int, policy: str, arguments: list[str]) -> None:
    found, reason = numa.choose(nodes, need, policy)
    assert found == arguments and reason


def test_a_node_that_is_too_small_or_an_unknown_policy() -> None:
    with pytest.raises(UserError, match="no node has the predicted 31000 MB free; use auto or interleave"):
        numa.choose(NODES, 31 * GB, "bind")
    with pytest.raises(UserError, match="'local', expected auto, none, bind or interleave"):
        numa.choose(NODES, 1, "local")


def granted(tmp_path: Path, tree: dict[str, str], membership: str = "0::/\n", available_kb: int = 1000) -> int:
    root = tmp_path / "cgroup"
    root.mkdir()
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "meminfo").write_text(f"MemTotal:       5000 kB\nMemFree:         10 kB\nMemAvailable:   {available_kb} kB\n")
    (tmp_path / "self").write_text(membership)
    return numa.granted_bytes(root, tmp_path / "meminfo", tmp_path / "self")


CACHE_V2 = "inactive_file 300000\nactive_file 80000\n"
CACHE_V1 = "inactive_file 1\nactive_file 2\ntotal_inactive_file 300000\ntotal_active_file 80000\n"
MEMORY: list[tuple[dict[str, str], str, int]] = [
    ({}, "0::/\n", 1_024_000),
    ({"memory.max": "max\n", "memory.current": "5\n"}, "0::/\n", 1_024_000),
    ({"memory.max": "500000\n", "memory.current": "100000\n"}, "0::/\n", 400_000),
    ({"memory.max": "9999999999\n", "memory.current": "100000\n"}, "0::/\n", 1_024_000),
    ({"memory.max": "500000\n", "memory.current": "600000\n"}, "0::/\n", 0),
    # a cgroup below, with its parents' limits
    ({"a/memory.max": "500000", "a/memory.current": "100000", "a/b/memory.max": "max", "a/b/memory.current": "0"}, "0::/a/b\n", 400_000),
    ({"a/memory.max": "500000", "a/memory.current": "100000"}, "0::/c\n", 1_024_000),
    # version 1
    ({"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "5"}, "4:memory:/\n", 1_024_000),
    ({"memory/x/memory.limit_in_bytes": "300000", "memory/x/memory.usage_in_bytes": "100000"}, "4:memory:/x\n3:cpu,cpuacct:/y\n", 200_000),
    # cached files are counted in the usage and give way; shared memory does not
    ({"memory.max": "500000", "memory.current": "480000", "memory.stat": f"anon 90000\nfile 390000\nshmem 10000\n{CACHE_V2}"}, "0::/\n", 400_000),
    (
        {"memory/memory.limit_in_bytes": "500000", "memory/memory.usage_in_bytes": "480000", "memory/memory.stat": CACHE_V1},
        "4:memory:/\n",
        400_000,
    ),
]


@pytest.mark.parametrize(("tree", "membership", "expected"), MEMORY)
def test_memory_granted(tmp_path: Path, tree: dict[str, str], membership: str, expected: int) -> None:
    assert granted(tmp_path, tree, membership) == expected


def test_too_little_memory_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "granted_bytes", lambda: 3 * GB)
    assert numa.require_memory(3 * GB, "training fold 0") == 3 * GB
    with pytest.raises(UserError, match=r"training fold 0 needs 4\.00 GB, 3\.00 GB are available; use a coarser"):
        numa.require_memory(4 * GB, "training fold 0")


# What numactl says where it may not do its work.
MESSAGES = [
    "libnuma: Warning: node argument 1 is out of range\n",
    "sched_setaffinity: Invalid argument\n",
    "set_mempolicy: Operation not permitted\nsetting interleave mask: Operation not permitted\n",
]
SHOW = "import os, sys; print('PINNING ' + os.environ['TERAVOX_PINNING']); sys.exit(7)"


def pin(folder: Path, *options: str, numactl: str | None = None, command: tuple[str, ...] = ("-c", SHOW)) -> subprocess.CompletedProcess[str]:
    """Run a command through pin.py with a made-up numactl, or with none, on a made-up machine of one node."""
    (folder / "bin").mkdir()
    if numactl is not None:
        (folder / "bin" / "numactl").write_text(f"#!/bin/sh\n{numactl}\n")
        (folder / "bin" / "numactl").chmod(0o755)
    (folder / "bin" / "true").symlink_to("/bin/true")
    (folder / "bin" / "cat").symlink_to("/bin/cat")
    start = (
        f"import sys, runpy; sys.path.insert(0, {str(SCRIPTS)!r})\nfrom teravox import numa\n"
        f"numa.topology = lambda: [numa.Node(0, (0,), {100 * GB}, {50 * GB})]\n"
        f"sys.argv[0] = 'pin.py'\nrunpy.run_path({str(SCRIPTS / 'pin.py')!r}, run_name='__main__')\n"
    )
    arguments = [sys.executable, "-c", start, *options, "--", sys.executable, *command]
    return subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "PATH": str(folder / "bin")})


def pinning(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("PINNING ")).removeprefix("PINNING "))


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("exit_status", [0, 1])
def test_numactl_that_is_not_permitted(tmp_path: Path, message: str, exit_status: int) -> None:
    (tmp_path / "message").write_text(message)
    done = pin(tmp_path, numactl=f"cat {tmp_path}/message >&2\nexit {exit_status}")
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("NOT PINNED: numactl is not permitted here (") and message.splitlines()[0] in done.stdout
    found = pinning(done)
    assert found["pinned"] is False and found["arguments"] == [] and found["policy"] == "auto"
    assert " ".join(message.split()) in found["reason"]


def test_no_numactl(tmp_path: Path) -> None:
    done = pin(tmp_path)
    assert done.returncode == 7
    assert done.stdout.startswith("NOT PINNED: numactl is not installed")
    assert pinning(done)["pinned"] is False


def test_numactl_that_works(tmp_path: Path) -> None:
    done = pin(tmp_path, "--need-mb", "5", numactl='echo "numactl $1 $2" >&2\nshift 2\n[ "$1" = true ] && exec 2>/dev/null\nexec "$@"')
    assert done.returncode == 7 and done.stdout.startswith("NOT PINNED")  # it spoke during the trial
    (tmp_path / "second").mkdir()
    done = pin(tmp_path / "second", "--need-mb", "5", numactl='[ "$3" = true ] || echo "numactl $1 $2"\nshift 2\nexec "$@"')
    assert done.returncode == 7 and done.stdout.startswith("pinned: ")
    assert "numactl --cpunodebind=0 --membind=0" in done.stdout.splitlines()
    assert pinning(done) == {"pinned": True, "policy": "auto", "arguments": ["--cpunodebind=0", "--membind=0"], "reason": pinning(done)["reason"]}


@pytest.mark.parametrize(("options", "expected"), [
    (("--policy", "none"), "NOT PINNED: policy none"),
    (("--policy", "interleave"), "pinned: policy interleave"),
    (("--need-mb", "60000000"), "pinned: no single node has the predicted 60000000 MB free"),
])  # fmt: skip
def test_policies(tmp_path: Path, options: tuple[str, ...], expected: str) -> None:
    done = pin(tmp_path, *options, numactl='while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"')
    assert done.returncode == 7 and done.stdout.startswith(expected)


def test_bind_refuses_what_no_node_has(tmp_path: Path) -> None:
    done = pin(tmp_path, "--policy", "bind", "--need-mb", "60000000")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: numa.policy bind: no node has the predicted 60000000 MB free")


def test_a_command_that_does_not_exist_or_is_missing(tmp_path: Path) -> None:
    script = [sys.executable, str(SCRIPTS / "pin.py"), "--policy", "none"]
    for command, text in ((["--", "/no/such"], "error: /no/such: No such file or directory\n"), ([], "error: pin: no command given")):
        done = subprocess.run([*script, *command], capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.startswith(text) and done.stderr.count("\n") == 1


def test_a_process_that_nobody_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERAVOX_PINNING", raising=False)
    assert numa.placement() == {"pinned": False, "reason": "not started through scripts/pin.py"}
    monkeypatch.setenv("TERAVOX_PINNING", '{"pinned": true, "reason": "x"}')
    assert numa.placement()["pinned"] is True
