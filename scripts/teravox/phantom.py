"""A head phantom with a brain tumour, as functions of world coordinates: it can be sampled on any grid.

World coordinates are millimetres, RAS+, with the origin in the middle of the head. Every structure is a depth: a signed
distance-like number of mm, positive inside. The head is smaller than a real one so that it fits a field of view of 160 mm.
"""

import dataclasses

import numpy as np

CHANNELS = ("t1", "t1c", "t2", "flair")
LABELS = {"necrotic_core": 1, "oedema": 2, "enhancing": 3}

# Signal of each tissue in the order of CHANNELS, in arbitrary units: the order of brightness that MR shows at 3 T.
SIGNAL = {
    "scalp": (760, 780, 480, 430),
    "bone": (70, 80, 50, 50),
    "muscle": (330, 420, 210, 220),
    "csf": (140, 145, 960, 90),
    "grey": (400, 425, 520, 500),
    "white": (560, 590, 390, 400),
    "oedema": (400, 410, 760, 880),
    "enhancing": (410, 1000, 640, 700),
    "necrotic_core": (210, 225, 880, 420),
}
NOISE_SIGMA = 22.0  # of each of the two parts of the complex signal: white matter then stands 25 sigma above air on t1
BIAS = 0.12  # standard deviation of the logarithm of the receive field over the head
TUMOUR_ML = (16.0, 40.0)  # whole tumour at the first visit
GROWTH = (1.2, 1.4)  # volume at a later visit over volume at the first
SOLID_PART = (0.40, 0.52)  # enhancing rim and core together, of the whole tumour
CORE_PART = (0.32, 0.45)  # core, of rim and core together
SHELL_MM = 2.5  # least depth of the oedema around the rim, and of the rim around the core
ROOM_PART = 0.9  # the most that a part takes of the room within its shell
REFERENCE_MM = 2.0  # edge of the voxels on which a tumour's volumes are set


@dataclasses.dataclass(frozen=True)
class SmoothNoise:
    """Random field of mean 0 and variance 1: a sum of plane waves. vectors : (n, 3), radian per mm; phases : (n,)."""

    vectors: np.ndarray
    phases: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, wavelength_mm: float, waves: int = 16) -> "SmoothNoise":
        directions = rng.normal(size=(waves, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        lengths = wavelength_mm * rng.uniform(0.7, 1.5, size=(waves, 1))
        return cls(2 * np.pi * directions / lengths, rng.uniform(0, 2 * np.pi, waves))

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """points : (3, ...) float32, mm -> (...) float32."""
        x, y, z = points
        total = np.zeros(x.shape, np.float32)
        for (a, b, c), phase in zip(self.vectors.astype(np.float32), self.phases.astype(np.float32), strict=True):
            total += np.cos(a * x + b * y + c * z + phase)
        return total * np.float32(np.sqrt(2 / len(self.phases)))


@dataclasses.dataclass(frozen=True)
class Anatomy:
    """One patient's healthy head. semi_axes_mm : (3,), half the head's width, length and height, order (x, y, z)."""

    semi_axes_mm: np.ndarray
    narrowing: float
    ventricles: float
    cortex_mm: float
    outline: SmoothNoise
    folds: SmoothNoise


@dataclasses.dataclass(frozen=True)
class Tumour:
    """A tumour by its three levels. centre_mm : (3,); axes : (3, 3), stretches and turns the distance from the centre.

    whole_mm, solid_mm, core_mm : the radii of the whole tumour, of enhancing rim and core, and of the core.
    """

    centre_mm: np.ndarray
    axes: np.ndarray
    roughness_mm: float
    noises: tuple[SmoothNoise, SmoothNoise, SmoothNoise]
    whole_ml: float
    solid_part: float
    core_part: float
    whole_mm: float = 0.0
    solid_mm: float = 0.0
    core_mm: float = 0.0


def world_points(shape: tuple[int, int, int], affine: np.ndarray) -> np.ndarray:
    """Voxel centres of a grid: shape (x, y, z), affine (4, 4) -> (3, x, y, z) float32, mm, RAS+."""
    i, j, k = (np.arange(n, dtype=np.float64) for n in shape)
    a = np.asarray(affine, np.float64)[:3, :, None, None, None]
    points = a[:, 0] * i[:, None, None] + a[:, 1] * j[:, None] + a[:, 2] * k + a[:, 3]
    return points.astype(np.float32)


def ellipsoid(points: np.ndarray, centre: tuple[float, ...], semi_axes: tuple[float, ...]) -> np.ndarray:
    """Depth in an ellipsoid, exact along its shortest axis. points : (3, ...), centre and semi_axes : (3,), mm -> (...)."""
    squares = sum(((points[i] - centre[i]) / semi_axes[i]) ** 2 for i in range(3))
    return np.float32(min(semi_axes)) * (1 - np.sqrt(squares))


def draw_anatomy(rng: np.random.Generator) -> Anatomy:
    return Anatomy(
        semi_axes_mm=np.array([62.0, 75.0, 69.0]) * rng.uniform(0.94, 1.04, 3),
        narrowing=rng.uniform(0.08, 0.16),
        ventricles=rng.uniform(0.85, 1.35),
        cortex_mm=rng.uniform(2.8, 3.6),
        outline=SmoothNoise.draw(rng, 90.0, 6),
        folds=SmoothNoise.draw(rng, 24.0, 24),
    )


def head_depths(anatomy: Anatomy, points: np.ndarray) -> dict[str, np.ndarray]:
    """Depths of head, skull, brain cavity, brain, white matter, ventricles, deep grey matter and eyes. points : (3, ...), mm."""
    x, y, z = points
    width, length, height = (float(value) for value in anatomy.semi_axes_mm)
    narrow = np.clip(1 - anatomy.narrowing * y / length, 0.7, 1.3)  # the forehead is narrower than the back of the head
    shell = ellipsoid(np.stack([x / narrow, y, z]), (0, 0, 0), (width, length, height)) + 1.2 * anatomy.outline(points)
    neck = np.minimum(44 - np.hypot(x, y + 12), -15 - z)
    base = 0.97 * (z + 26 - 0.25 * y)  # the skull base rises towards the forehead
    cavity = np.minimum(shell - 9, base)
    depth = cavity - 1.5
    # Distance to the brain's surface, the walls of its sulci (where the folding noise is 0) and the fissure between the halves.
    sulcus = np.hypot(3.6 * anatomy.folds(points), np.maximum(depth - 13, 0))
    fissure = np.hypot(x, np.maximum(14 - z, 0))
    surface = np.minimum(depth, np.minimum(sulcus, fissure) - 0.6)
    size = anatomy.ventricles
    bend = 5 + np.abs(y + 2) ** 1.5 / 22  # the horns spread apart and sink away from the middle
    lateral = ellipsoid(np.stack([np.abs(x) - bend, y + 4, z - 9 + y**2 / 130]), (0, 0, 0), (5.0 * size, 27.0, 7.0 * size))
    third = ellipsoid(points, (0, -4, -6), (2.6 * size, 12, 8))
    ganglia = ellipsoid(np.stack([np.abs(x), y, z]), (17, 4, 0), (6, 14, 9))
    thalamus = ellipsoid(np.stack([np.abs(x), y, z]), (9, -12, -1), (6, 9, 7))
    eyes = ellipsoid(np.stack([np.abs(x), y, z]), (24, 0.72 * length, -27), (10, 10, 10))
    return {
        "head": np.maximum(shell, neck),
        "skull": shell - 4.5,
        "base": base,
        "cavity": cavity,
        "brain": surface,
        "white": surface - anatomy.cortex_mm,
        "ventricles": np.maximum(lateral, third),
        "deep_grey": np.maximum(ganglia, thalamus),
        "eyes": np.minimum(eyes, shell - 1),
    }


def draw_tumour(rng: np.random.Generator, anatomy: Anatomy) -> Tumour:
    """A tumour of the first visit, in one half of the brain, its radii set so that the volumes come out as drawn."""
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    stretch = rng.uniform(0.85, 1.18, 3)
    tumour = Tumour(
        centre_mm=np.array([rng.choice([-1, 1]) * rng.uniform(19, 29), rng.uniform(-32, 30), rng.uniform(4, 26)]),
        axes=np.diag(stretch / np.prod(stretch) ** (1 / 3)) @ turn,
        roughness_mm=rng.uniform(1.6, 2.6),
        noises=(SmoothNoise.draw(rng, 24.0), SmoothNoise.draw(rng, 18.0), SmoothNoise.draw(rng, 15.0)),
        whole_ml=rng.uniform(*TUMOUR_ML),
        solid_part=rng.uniform(*SOLID_PART),
        core_part=rng.uniform(*CORE_PART),
    )
    return set_radii(tumour, anatomy)


def grow_tumour(rng: np.random.Generator, tumour: Tumour, anatomy: Anatomy) -> Tumour:
    """The same tumour at a later visit: larger, with other parts of rim and core."""
    whole_ml, solid, core = tumour.whole_ml * rng.uniform(*GROWTH), rng.uniform(*SOLID_PART), rng.uniform(*CORE_PART)
    return set_radii(dataclasses.replace(tumour, whole_ml=whole_ml, solid_part=solid, core_part=core), anatomy)


def tumour_levels(tumour: Tumour, points: np.ndarray) -> list[np.ndarray]:
    """Distance from the centre made irregular, for whole tumour, solid part and core. points : (3, ...), mm -> three of (...)."""
    offset = points - tumour.centre_mm.astype(np.float32).reshape(3, *[1] * (points.ndim - 1))
    distance = np.linalg.norm(np.tensordot(tumour.axes.astype(np.float32), offset, 1), axis=0)
    return [distance + scale * tumour.roughness_mm * noise(points) for scale, noise in zip((1.3, 1.0, 0.8), tumour.noises, strict=True)]


def tumour_room(depths: dict[str, np.ndarray]) -> np.ndarray:
    """Depth of the region a tumour may fill: the brain without its outermost 2 mm and without the ventricles."""
    return np.minimum(depths["cavity"] - 3.5, -depths["ventricles"] - 1)


def set_radii(tumour: Tumour, anatomy: Anatomy) -> Tumour:
    """Choose the three radii so that the parts have the tumour's volumes, by counting voxels of a reference grid around it.

    Where a part finds too little room within its shell, it takes ROOM_PART of what there is.
    """
    reach_mm = 44.0
    count = int(2 * reach_mm / REFERENCE_MM) + 1
    affine = np.diag([REFERENCE_MM, REFERENCE_MM, REFERENCE_MM, 1.0])
    affine[:3, 3] = tumour.centre_mm - reach_mm
    points = world_points((count, count, count), affine)
    room = tumour_room(head_depths(anatomy, points))
    volume_ml = tumour.whole_ml
    radii = []
    for level, part in zip(tumour_levels(tumour, points), (1.0, tumour.solid_part, tumour.core_part), strict=True):
        volume_ml *= part
        inside = level[room > 0]
        voxels = min(round(volume_ml * 1000 / REFERENCE_MM**3), int(ROOM_PART * inside.size))
        radii.append(float(np.partition(inside, voxels)[voxels]))
        room = np.minimum(room, radii[-1] - level) - SHELL_MM
    return dataclasses.replace(tumour, whole_mm=radii[0], solid_mm=radii[1], core_mm=radii[2])


def tumour_depths(tumour: Tumour, points: np.ndarray, room: np.ndarray) -> dict[str, np.ndarray]:
    """Depths of the nested parts, outermost first; each lies at least SHELL_MM inside the one before. points : (3, ...), mm."""
    depths = {}
    radii = (tumour.whole_mm, tumour.solid_mm, tumour.core_mm)
    for name, radius, level in zip(("oedema", "enhancing", "necrotic_core"), radii, tumour_levels(tumour, points), strict=True):
        depths[name] = np.minimum(room, radius - level)
        room = depths[name] - SHELL_MM
    return depths


def patient_generator(seed: int, patient: int, visit: int) -> np.random.Generator:
    """An independent stream for each patient and purpose: visit 0 draws the anatomy, visits from 1 on what changes between scans."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(patient, visit)))


def sample_head(seed: int, patient: int, visit: int, shape: tuple[int, int, int], affine: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Scan a patient: the channels, (x, y, z) int16 each, and the label map, (x, y, z) uint8 of LABELS.

    seed >= 0; patient, visit : count from 1; shape : (x, y, z); affine : (4, 4), mm, RAS+. The signal of a voxel mixes tissues
    across a border as wide as the voxel (a simple partial volume); the label is decided at the voxel's centre.
    """
    fixed, changing = patient_generator(seed, patient, 0), patient_generator(seed, patient, visit)
    anatomy = draw_anatomy(fixed)
    tumour = draw_tumour(fixed, anatomy)
    if visit > 1:
        tumour = grow_tumour(changing, tumour, anatomy)
    points = world_points(shape, affine)
    head = head_depths(anatomy, points)
    parts = tumour_depths(tumour, points, tumour_room(head))
    label = np.zeros(shape, np.uint8)
    for name, depth in parts.items():
        label[depth > 0] = LABELS[name]
    layers = [
        ("scalp", head["head"]),
        ("muscle", np.minimum(head["head"] - 4, -head["base"] - 4)),
        ("bone", np.minimum(head["skull"], head["base"] + 5)),
        ("csf", head["cavity"]),
        ("grey", head["brain"]),
        ("white", head["white"]),
        ("grey", head["deep_grey"]),
        ("csf", head["ventricles"]),
        ("csf", head["eyes"]),
        *parts.items(),
    ]
    edge_mm = max(1.0, float(abs(np.linalg.det(affine[:3, :3]))) ** (1 / 3))
    signal = np.zeros((len(CHANNELS), *shape), np.float32)
    for tissue, depth in layers:
        fraction = np.clip(0.5 + depth / edge_mm, 0, 1)
        for image, value in zip(signal, SIGNAL[tissue], strict=True):
            image += fraction * (np.float32(value) - image)
    images = {}
    for name, image in zip(CHANNELS, signal, strict=True):
        gain = changing.uniform(0.85, 1.2) * np.exp(BIAS * SmoothNoise.draw(changing, 280.0, 6)(points))
        noise = NOISE_SIGMA * changing.standard_normal((2, *shape), np.float32)
        images[name] = np.rint(np.hypot(image * gain + noise[0], noise[1])).astype(np.int16)
    return images, label
