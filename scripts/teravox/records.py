"""The record of a job: a deterministic document beside its artefacts, and a `.run.json` with what differs from run to run.

The document says what the artefacts are (content hashes), what they were made from, with which settings, seeds and versions.
Later stages have it as their input, so it holds no time, host or path. The run record holds the command, the times, the
memory and the machine.
"""

import datetime
import os
import platform
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from teravox import files, hashing, imports


class Recorder:
    """Made when a command starts; `write` is called once, when its artefacts stand under their final names."""

    def __init__(self, stage: str, script: str) -> None:
        self.stage = stage
        self.script = Path(script)
        self.started = psutil.Process().create_time()  # imports are part of what a job costs

    def write(
        self,
        path: Path,
        content: dict[str, Any],
        *,
        artefacts: dict[str, str],
        inputs: dict[str, str],
        settings: dict[str, Any],
        seeds: dict[str, int] | None = None,
        run: dict[str, Any] | None = None,
    ) -> None:
        """Write `path` (JSON) and `<stem>.run.json` beside it.

        content : the stage's own findings, at the top level of the document; artefacts : path relative to that of the document
        -> content hash; inputs : logical name such as "ingest/case01/t1" -> content hash; run : further facts about this run alone.
        """
        provenance = {
            "stage": self.stage,
            "artefacts": artefacts,
            "inputs": inputs,
            "settings": settings,
            "seeds": seeds or {},
            "versions": imports.package_versions(self.script),
        }
        record = {
            "stage": self.stage,
            "command": [self.script.name, *sys.argv[1:]],
            "started": datetime.datetime.fromtimestamp(self.started, datetime.UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self.started, 3),
            "peak_rss_bytes": peak_rss_bytes(),
            "code": code_digest(self.script),
            "commit": commit(),
            "machine": machine(),
            **(run or {}),
        }
        files.write_json(run_path(path), record)
        files.write_json(path, {**content, "provenance": provenance})


def run_path(path: Path) -> Path:
    """results/split.json -> results/split.run.json"""
    return Path(path).with_suffix(".run.json")


def peak_rss_bytes() -> int:
    """Highest resident set of this process or of its largest child so far, in bytes (the kernel counts kibibytes)."""
    # Not getrusage for the process itself: what that counts begins with the peak of the process it was started from.
    match = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    own = int(match.group(1)) if match else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, children) * 1024


def code_digest(script: Path) -> str:
    """One hash over the command's own file and every library file it imports."""
    root = imports.LIBRARY.parent
    parts = [f"{path.relative_to(root)} {hashing.file_digest(path)}" for path in imports.library_files(script)]
    return hashing.text_digest("\n".join(parts))


def commit() -> str:
    """The git commit of the code, "+changes" when tracked files differ from it, "unknown" outside a checkout."""
    root = imports.LIBRARY.parent
    try:
        head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(["git", "-C", root, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed.strip() else "")


def machine() -> dict[str, Any]:
    """What about this machine can change a number or a time: processor, its vector features, allowed cores, kernel, C library."""
    model, flags = platform.processor(), []
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() == "flags":
                flags = [flag for flag in value.split() if flag.startswith(("avx", "amx", "fma", "sse4"))]
            elif not key.strip():
                break
    except OSError:
        pass
    return {
        "cpu": model,
        "cpu_features": sorted(flags),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
    }
