"""The network and its loss, written with raw TensorFlow operations on whole volumes (NDHWC).

TensorFlow reads these variables once, when it is imported; importing anything of this package comes before that.
"""

import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # stock TensorFlow leaves oneDNN off on x86 without VNNI, BF16 or AMX
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # warnings and above
