"""Label images: whole numbers that the configuration names, and nothing else."""

import numpy as np

from teravox import store
from teravox.errors import RejectedCase

LABEL_ATOL = 1e-3  # labels stored as float or through a scale factor come back as 1.9999999995


def as_label(array: np.ndarray, allowed: list[int], source: str, ignore: int | None = None) -> np.ndarray:
    """Labels as the smallest unsigned integers that hold every allowed value, `ignore` too.

    array : (x, y, z) real; allowed : foreground values; source : begins the message; ignore : value of voxels that nobody
    judged, kept as it is. Raises RejectedCase when a value is no integer within LABEL_ATOL or not one of 0, `allowed`, `ignore`.
    """
    values = [*allowed, *([] if ignore is None else [ignore])]
    expected = f"expected 0, {', '.join(map(str, values))}"
    rounded = array
    if np.issubdtype(array.dtype, np.floating):
        bad = int(np.count_nonzero(~np.isfinite(array)))
        if bad:
            raise RejectedCase(f"{source}: {bad} label voxels are NaN or infinite, {expected}")
        rounded = np.rint(array)
        off = float(np.abs(array - rounded).max())
        if off > LABEL_ATOL:
            raise RejectedCase(f"{source}: label values are not whole numbers (off by {off:.3g}), {expected}")
    foreign = [value for value in np.unique(rounded).tolist() if value not in [0, *values]]
    if foreign:
        raise RejectedCase(f"{source}: label value {foreign[0]:.10g}, {expected} ('labels' and 'ignore_value' of the configuration)")
    return rounded.astype(store.label_dtype(values))
