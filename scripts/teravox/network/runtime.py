"""TensorFlow set up for one deterministic process on the CPU, and what is recorded about it."""

import os
from typing import Any

import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from teravox.errors import UserError

INTER_OP_THREADS = 2  # independent branches of the backward pass overlap: a fifth faster, and every sum keeps its order


def start(threads: int) -> dict[str, Any]:
    """Fix threads, determinism and oneDNN before the first operation runs. Returns the facts for the run record.

    Threads change the last bits of sums, so exactly `threads` run, on however many cores are allowed. Raises UserError when
    oneDNN is not on: without it a step takes up to ten times as long and several times the memory.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(INTER_OP_THREADS)
    tf.config.experimental.enable_op_determinism()
    # With oneDNN, the remapping pass fuses an explicit pad and a convolution into an operation of the wrong shape.
    tf.config.optimizer.set_experimental_options({"remapping": False})
    if not _pywrap_util_port.IsMklEnabled():
        raise UserError(
            "TensorFlow runs without oneDNN on this processor, expected it on (TF_ENABLE_ONEDNN_OPTS=1); use an x86-64 or AArch64 build that has it"
        )
    cores = len(os.sched_getaffinity(0))
    if cores < threads:
        print(f"note: {threads} threads run on {cores} cores, slower than on {threads} cores; the numbers are the same")
    return {"threads": threads, "cores_allowed": cores, "onednn": True, "op_determinism": True, "tensorflow": tf.__version__}
