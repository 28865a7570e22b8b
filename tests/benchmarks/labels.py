"""Which interpolation brings labels through a grid and back with the least loss: the choice behind `resample.label`.

    python tests/benchmarks/labels.py    about three minutes on two cores

Forty label maps of the Medical Segmentation Decathlon's Task04 (hippocampus, 1 mm), as they are and with every third slice alone (1 x 1 x 3
mm), go onto isotropic grids and back by each method; the way back is linear, as for predictions. "+" means a low-pass before the grid. The
last line is JSON: by how much the default's mean Dice exceeds the better of `nearest` and `linear`, averaged over grids; exit status 1 when it
does not, 2 without the data.
"""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]
DATA = Path(os.environ.get("TERAVOX_SHARED", ROOT.parent / "shared")) / "data" / "msd_hippocampus" / "labelsTr"
SPACINGS = (0.5, 0.8, 1.5, 2, 3)
METHODS = [("nearest", False), ("linear", False), ("linear", True), ("bspline", False), ("bspline", True), ("lanczos", False), ("lanczos", True)]


def main() -> int:
    import nibabel as nib
    import numpy as np

    import naive_resampling as naive
    from teravox import metrics, resample, sampling
    from teravox.grids import Grid

    def moved(label: np.ndarray, way: sampling.Sampler) -> np.ndarray:
        _, height, depth = way.new_shape
        return resample.label_tile(way, sampling.reader(label), sampling.Tile(0, depth, 0, height)).T

    paths = sorted(DATA.glob("*.nii.gz"))[:40]
    if not paths:
        print(f"{DATA}: no label maps, expected those of Task04", file=sys.stderr)
        return 2
    labels = [(np.asanyarray(image.dataobj).astype(np.uint8), image.affine) for image in map(nib.load, paths)]
    thick = [(np.ascontiguousarray(label[:, :, ::3]), affine @ np.diag([1, 1, 3, 1])) for label, affine in labels]
    gains = []
    for name, volumes in (("1x1x1", labels), ("1x1x3", thick)):
        for spacing in SPACINGS:
            means = {}
            for method, low_pass in METHODS:
                dice, nsd, change = [], [], []
                for label, affine in volumes:
                    native = Grid(label.shape, affine)
                    grid = naive.grid_of(label.shape, affine, spacing)
                    there = moved(label, sampling.sampler(native, grid, method, low_pass))
                    back = moved(there, resample.way_back(grid, native))
                    for value in (1, 2):
                        score = metrics.score(back == value, label == value, affine, 1)
                        dice.append(score["dice"])
                        nsd.append(score["nsd"])
                        change.append(abs(score["volume_ml"] / score["reference_volume_ml"] - 1))
                means[method, low_pass] = float(np.mean(dice))
                found = {"dice": np.mean(dice), "dice_min": np.min(dice), "nsd": np.mean(nsd), "volume_change": np.mean(change)}
                about = {"native_mm": name, "spacing_mm": spacing, "method": method + "+" * low_pass}
                print(json.dumps(about | {key: round(float(value), 4) for key, value in found.items()}), flush=True)
            gains.append(means["bspline", False] - max(means["nearest", False], means["linear", False]))
    gain = float(np.mean(gains))
    print(json.dumps({"figure": "Dice of the default over the best other choice", "value": round(gain, 5), "target": 0, "pass": gain >= 0}))
    return 0 if gain >= 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
