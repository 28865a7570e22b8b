"""What a training sees, step by step, as a tf.data pipeline over shards.

Everything about a step follows from (seed, fold, step, rank): the case, the part of it, the random changes. So a training goes on at any
step without a state, and the number of threads that read ahead changes nothing.
"""

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import tensorflow as tf

from teravox.patches import Box
from teravox.shard_reader import ShardReader

Transform = Callable[[str, np.ndarray, np.ndarray, np.random.Generator], tuple[np.ndarray, ...]]
PICTURE, PART = 2, 3  # what a generator is for: random changes, the part of a case; 1 is the order


def case_at(cases: list[str], step: int, seed: int, fold: int, rank: int = 0, ranks: int = 1) -> str:
    """The case of a step: every epoch is a permutation drawn from (seed, fold, epoch), dealt out to the ranks in turn."""
    epoch, position = divmod(step * ranks + rank, len(cases))
    return cases[int(np.random.default_rng([seed, fold, 1, epoch]).permutation(len(cases))[position])]


@dataclasses.dataclass
class Feed:
    """Training examples. cases : those of the fold; transform : makes the tensors of a step from a case's name, its image (z, y, x, c) and
    label (z, y, x) in native types, and a generator: here random changes belong; signature : of these tensors, after the case's name;
    part : draws the part of a case that is read, or None for whole volumes; rank, ranks : this process and how many share the cases.
    """

    reader: ShardReader
    cases: list[str]
    seed: int
    fold: int
    transform: Transform
    signature: tuple[tf.TensorSpec, ...]
    part: Callable[[str, np.random.Generator], Box] | None = None
    rank: int = 0
    ranks: int = 1
    errors: dict[int, BaseException] = dataclasses.field(default_factory=dict, init=False)

    def _generator(self, step: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.fold, purpose, step * self.ranks + self.rank])

    def example(self, step: int) -> tuple[Any, ...]:
        """The case's name and the tensors of a step."""
        case = case_at(self.cases, step, self.seed, self.fold, self.rank, self.ranks)
        if self.part is None:
            image, label = self.reader.load(case)
        else:
            (first, last), *rows = self.part(case, self._generator(step, PART))
            inside = (slice(None), *(slice(*edge) for edge in rows))
            image, label = (array[inside] for array in self.reader.load(case, first, last))
        return (case, *self.transform(case, image, label, self._generator(step, PICTURE)))

    def dataset(self, start: int, stop: int, step_bytes: int, budget_bytes: float, workers: int = 2) -> tf.data.Dataset:
        """Steps start, ..., stop - 1 in order, as many ahead of the caller as fit into `budget_bytes`, but one at least.

        step_bytes : of the largest step's tensors; workers : steps in the making at a time, at most.
        """
        ahead = max(1, int(budget_bytes // step_bytes))
        workers = min(workers, ahead)
        dtypes = [tf.string, *(spec.dtype for spec in self.signature)]

        def load(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # A step depends on nothing but its number, so TensorFlow may make several at a time; it may not when told that it has a state.
            tensors = tf.numpy_function(self._guarded, [step], dtypes, stateful=False)
            for tensor, spec in zip(tensors, [tf.TensorSpec(()), *self.signature], strict=True):
                tensor.set_shape(spec.shape)
            return tuple(tensors)

        # Not from_generator: with it TensorFlow lowers glibc's trim threshold, and every training step pays for its memory anew.
        steps = tf.data.Dataset.range(start, stop).map(load, num_parallel_calls=workers, deterministic=True)
        if ahead > workers:
            steps = steps.prefetch(ahead - workers)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = workers + 1  # reading must not wait for the network's threads, nor they for it
        return steps.with_options(options)

    def _guarded(self, step: np.ndarray) -> tuple[Any, ...]:
        """`example`, or no case's name and empty tensors after an error: of one that is raised here TensorFlow logs a hundred lines."""
        try:
            return self.example(int(step))
        except BaseException as error:
            self.errors[int(step)] = error.with_traceback(None)  # its frames would keep the pipeline alive
            return ("", *(np.empty([edge or 0 for edge in spec.shape], spec.dtype.as_numpy_dtype) for spec in self.signature))

    def steps(self, dataset: tf.data.Dataset) -> Generator[tuple[tf.Tensor, ...], None, None]:
        """Go through a dataset of this feed, and raise its errors as they were."""
        self.errors.clear()
        iterator, failure = iter(dataset), None
        try:
            for step in iterator:
                if not step[0].numpy():
                    break
                yield step
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error.with_traceback(None)  # its frames hold the iterator
        finally:
            # Now, not when the interpreter ends: the pipeline's threads would wait for the interpreter then, and it for them.
            del iterator
        if self.errors:
            raise self.errors.pop(min(self.errors))
        if failure is not None:
            raise failure
