"""Speed, peak memory and growth of resampling, beside TorchIO, MONAI and scipy.

    PEERS=/path/to/environment python tests/benchmarks/resample.py          about ten minutes on two cores
    PEERS=/path/to/environment python tests/benchmarks/resample.py --full   memory and growth up to 1000^3 voxels, and the command at 500^3

$PEERS is an environment with torchio, monai and scipy, for ../shared/peers/resample_peers.py. Speed: a float32 file of 1 x 1 x 2 mm onto 0.5
mm, read from disk and written to disk as float32 by all, by turns, in processes of their own pinned to one core, imports not counted. Memory
and growth: an int16 file of 1 mm onto 0.5 mm, linear; memory with two threads, growth with one, in the second run of a process, as what is done
once is not growth. The command: image and label by scripts/resample.py, ceiling included, with the least and the default memory_mb. The
last lines are JSON with a target each; exit status 1 when one is missed, 2 without peers.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEER_SCRIPT = ROOT.parent / "shared" / "peers" / "resample_peers.py"
SPEED = {  # ours, peer: at least so many times as fast
    ("linear", "torchio_linear"): 2,
    ("linear", "monai_bilinear"): 3,
    ("linear", "scipy_order3"): 20,
    ("bspline", "scipy_order3"): 3,
}
SHAPE, TURNS = (160, 160, 80), 5  # 320^3 voxels after
EDGES = {200: 9, 400: 5, 700: 3, 1000: 3}  # edge of the result: turns
FLAT, EXPONENT = 0.10, 0.10  # targets
MEMORY_MB = (256, 1024)


def volume(path: Path, shape: tuple[int, int, int], spacing: tuple[float, float, float], dtype: str) -> None:
    """Noise, as an uncompressed file."""
    import numpy as np

    sys.path.insert(0, str(ROOT / "scripts"))
    from teravox import bulk

    rng = np.random.default_rng(0)
    with bulk.create(path, shape, np.dtype(dtype), np.diag([*spacing, 1])) as out:
        for z in range(shape[2]):
            out.write((rng.random((1, shape[1], shape[0]), np.float32) * 1000).astype(dtype), z, 0)


def ours(source: Path, method: str, spacing: float, threads: int, runs: int) -> None:
    """Resampling by the library in this process; prints seconds of the last run, voxels, idle and peak bytes."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import numpy as np

    from teravox import bulk, geometry, resample, sampling
    from teravox.grids import Grid
    from teravox.records import peak_rss_bytes

    idle = peak_rss_bytes()
    out = source.with_name("out.nii")
    for _ in range(runs):
        started = time.perf_counter()
        with bulk.opened(source) as old:
            direction = geometry.direction_of(old.affine)
            box = geometry.box_of(old.shape, old.affine, direction)
            grid = Grid(*geometry.grid_over(box, direction, np.full(3, spacing)))
            with bulk.create(out, grid.shape, old.dtype, grid.affine) as new:
                way = sampling.sampler(old.grid, grid, method)
                for _ in resample.write_image(old, new, 0, way, (0, 1000), 0, 1_024_000_000, threads):
                    pass
        seconds = time.perf_counter() - started
        out.unlink()
        os.sync()
    print(json.dumps({"seconds": seconds, "voxels": grid.voxels, "idle_bytes": idle, "peak_bytes": peak_rss_bytes()}))


def command(folder: Path, edge: int, memory_mb: int) -> None:
    """scripts/resample.py in this process on an ingested case whose result has `edge`^3 voxels; prints idle and peak bytes."""
    sys.path[:0] = [str(ROOT / "scripts")]
    import resample as script
    from teravox.records import peak_rss_bytes

    idle = peak_rss_bytes()
    settings = {"channels": [{"name": "t1"}], "labels": [{"name": "a", "value": 1}, {"name": "b", "value": 2}], "resample": {"spacing": 0.5}}
    out = folder / f"out{memory_mb}"
    script.main(argparse.Namespace(case=folder / "case.json", settings=settings, threads=2, memory_mb=memory_mb, out=out))
    shutil.rmtree(out)
    print(json.dumps({"idle_bytes": idle, "peak_bytes": peak_rss_bytes()}))


def case(folder: Path, edge: int) -> None:
    """An ingested case of half the edge at 1 mm: noise, and two balls as labels."""
    import nibabel as nib
    import numpy as np

    half = edge // 2
    image = (np.random.default_rng(0).random((half,) * 3, np.float32) * 1000).astype(np.int16)
    place = np.arange(half)
    distance = np.sqrt(((place - half / 2) ** 2)[:, None, None] + ((place - half / 2) ** 2)[:, None] + (place - half / 2) ** 2)
    label = np.where(distance < half / 6, 2, distance < half / 3).astype(np.uint8)
    for name, array in (("t1", image), ("label", label)):
        nib.save(nib.Nifti1Image(array, np.eye(4)), folder / f"{name}.nii")
    settings = json.dumps({"channels": [{"name": "t1"}], "labels": [{"name": "a", "value": 1}, {"name": "b", "value": 2}]})
    made = [sys.executable, str(ROOT / "scripts" / "ingest.py"), "--case=c1", "--patient=p1", "--key=public", f"--image=t1={folder / 't1.nii'}"]
    subprocess.run([*made, f"--label={folder / 'label.nii'}", f"--settings={settings}", f"--out={folder / 'case'}"], check=True, capture_output=True)


def alone(arguments: list[str], core: int | None = None, python: str = sys.executable) -> str:
    """Run in a process of its own, on one core if it is named; returns what it printed."""
    os.sync()  # what others wrote is not to be paid here
    pin: Callable[[], None] | None = None if core is None else lambda: os.sched_setaffinity(0, {core})
    done = subprocess.run([python, *arguments], check=True, capture_output=True, text=True, preexec_fn=pin)
    return done.stdout


def measured(arguments: list[str], core: int | None = None) -> dict[str, float]:
    found: dict[str, float] = json.loads(alone([__file__, *arguments], core).splitlines()[-1])
    return found


def speed(scratch: Path, peers: str, core: int) -> dict[str, float]:
    """Million voxels per second and core by name: medians of turns."""
    source = scratch / "speed.nii"
    volume(source, SHAPE, (1, 1, 2), "float32")
    rates: dict[str, list[float]] = {}
    for _ in range(TURNS):
        for method in ("linear", "bspline"):
            found = measured(["--one", str(source), method, "0.5", "1", "1"], core)
            rates.setdefault(method, []).append(found["voxels"] / found["seconds"] / 1e6)
        for line in alone([str(PEER_SCRIPT), str(source), "--spacing", "0.5"], core, peers).splitlines():
            peer = json.loads(line)
            rates.setdefault(peer["peer"], []).append(peer["out_voxels"] / peer["seconds"] / 1e6)
    source.unlink()
    return {name: statistics.median(values) for name, values in rates.items()}


def slope(sizes: list[float], seconds: list[float]) -> float:
    """Exponent of seconds against size, by least squares on logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(second) for second in seconds]
    mean = statistics.fmean(x)
    return sum((a - mean) * b for a, b in zip(x, y, strict=True)) / sum((a - mean) ** 2 for a in x)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="up to 1000^3 voxels; writes the figures to tests/benchmarks/results/resample.json")
    parser.add_argument("--one", nargs=5, metavar="X", help=argparse.SUPPRESS)
    parser.add_argument("--command", nargs=3, metavar="X", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        ours(Path(args.one[0]), args.one[1], float(args.one[2]), int(args.one[3]), int(args.one[4]))
        return 0
    if args.command:
        command(Path(args.command[0]), int(args.command[1]), int(args.command[2]))
        return 0
    peers = os.environ.get("PEERS", "")
    if not peers or not Path(peers, "bin", "python").exists() or not PEER_SCRIPT.exists():
        print(f"PEERS={peers or '(not set)'}: no environment of the peers, or no {PEER_SCRIPT}; nothing was measured", file=sys.stderr)
        return 2
    figures = []

    def figure(name: str, value: float, target: float, good: bool) -> None:
        figures.append({"figure": name, "value": round(value, 3), "target": target, "pass": good})

    core = max(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        rates = speed(scratch, str(Path(peers, "bin", "python")), core)
        print(json.dumps({"million voxels per second and core": {name: round(rate, 1) for name, rate in rates.items()}}), flush=True)
        for (method, peer), target in SPEED.items():
            figure(f"{method} over {peer}", rates[method] / rates[peer], target, rates[method] >= target * rates[peer])

        peaks, sizes, seconds = [], [], []
        for edge, turns in EDGES.items():
            if edge > 700 and not args.full:
                continue
            source = scratch / "cube.nii"
            volume(source, (edge // 2,) * 3, (1, 1, 1), "int16")
            pairs = [measured(["--one", str(source), "linear", "0.5", "2", "1"]) for _ in range(turns)]
            runs = [measured(["--one", str(source), "linear", "0.5", "1", "2"]) for _ in range(turns)]
            peaks.append(statistics.median(run["peak_bytes"] for run in pairs))
            sizes.append(runs[0]["voxels"])
            seconds.append(statistics.median(run["seconds"] for run in runs))
            idle = statistics.median(run["idle_bytes"] for run in runs)
            row = {"edge": edge, "seconds": round(seconds[-1], 3), "idle_mb": round(idle / 1e6, 1), "peak_mb": round(peaks[-1] / 1e6, 1)}
            print(json.dumps(row), flush=True)
            source.unlink()
        figure("peak memory, largest over smallest, less 1", max(peaks) / min(peaks) - 1, FLAT, max(peaks) / min(peaks) - 1 <= FLAT)
        exponent = slope(sizes, seconds)
        figure("exponent of cost against size, off 1", abs(exponent - 1), EXPONENT, abs(exponent - 1) <= EXPONENT)
        print(json.dumps({"exponent": round(exponent, 3)}), flush=True)

        edge = 500 if args.full else 300
        case(scratch, edge)
        for memory_mb in MEMORY_MB:
            found = measured(["--command", str(scratch / "case"), str(edge), str(memory_mb)])
            above = (found["peak_bytes"] - found["idle_bytes"]) / 1e6
            print(json.dumps({"command, edge": edge, "memory_mb": memory_mb, "peak_above_idle_mb": round(above, 1)}), flush=True)
            figure(f"peak of the command above idle over memory_mb {memory_mb}", above / memory_mb, 1, above <= memory_mb)
    for line in figures:
        print(json.dumps(line))
    if args.full:
        sys.path.insert(0, str(ROOT / "scripts"))
        from teravox import records

        record = {
            "command": "python tests/benchmarks/resample.py --full",
            "commit": records.commit(),
            "machine": records.machine(),
            "million_voxels_per_second_and_core": {name: round(rate, 2) for name, rate in rates.items()},
            "figures": figures,
        }
        text = json.dumps(record, indent=1, sort_keys=True)
        (ROOT / "tests" / "benchmarks" / "results" / "resample.json").write_text(text + "\n")
    return 0 if all(line["pass"] for line in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
