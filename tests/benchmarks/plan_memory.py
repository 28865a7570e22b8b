"""How near the plan's predicted peak comes to the measured one, over sizes and widths.

    python tests/benchmarks/plan_memory.py          sizes up to 96^3, about five minutes on two cores
    python tests/benchmarks/plan_memory.py --full   up to 160^3

Each training of two steps runs in a process of its own. The last line is JSON: the worst ratio of prediction to measurement on
either side (1 is exact); exit status 1 when it passes the target.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TARGET = 1.25
# edge, channels, classes, filters, levels
QUICK = [(48, 4, 4, 8, 5), (64, 1, 3, 16, 4), (64, 1, 3, 16, 5), (80, 2, 2, 12, 5), (96, 1, 2, 8, 4), (96, 4, 4, 16, 5)]
FULL = [(128, 1, 2, 16, 5), (160, 1, 2, 16, 5), (128, 4, 4, 24, 5)]


def measure(edge: int, channels: int, classes: int, filters: int, levels: int) -> None:
    """Two steps in this process; prints predicted and measured peak in bytes."""
    sys.path.insert(0, str(SCRIPTS))
    import numpy as np

    from teravox import plan
    from teravox.network import runtime
    from teravox.network.unet import UNet
    from teravox.records import peak_rss_bytes
    from teravox.training import Trainer

    runtime.start(2)
    network = UNet(channels, classes, filters, levels)
    trainer = Trainer(network, {"steps": 2, "learning_rate": 1e-3, "weight_decay": 0.0, "average": 0.9}, seed=0)
    rng = np.random.default_rng(0)
    for number in range(2):
        image = rng.standard_normal((1, edge, edge, edge, channels), np.float32)
        trainer.step(image, rng.integers(0, classes, (1, edge, edge, edge), np.int32), np.full(3, edge, np.int32), number)
    print(json.dumps({"predicted": plan.training_bytes(network, [edge] * 3), "measured": peak_rss_bytes()}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="also volumes up to 160^3")
    parser.add_argument("--one", type=int, nargs=5, metavar="N", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure(*args.one)
        return 0
    worst = 1.0
    for case in QUICK + (FULL if args.full else []):
        command = [sys.executable, __file__, "--one", *map(str, case)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        ratio = found["predicted"] / found["measured"]
        worst = max(worst, ratio, 1 / ratio)
        shape = dict(zip(("edge", "channels", "classes", "filters", "levels"), case, strict=True))
        print(
            json.dumps({**shape, **found, "ratio": round(ratio, 3), "measured_bytes_per_voxel": round(found["measured"] / case[0] ** 3)}), flush=True
        )
    print(
        json.dumps(
            {"figure": "worst ratio of predicted to measured peak memory", "value": round(worst, 3), "target": TARGET, "pass": worst <= TARGET}
        )
    )
    return int(worst > TARGET)


if __name__ == "__main__":
    raise SystemExit(main())
