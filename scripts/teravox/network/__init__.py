"""The network and its loss, written with raw TensorFlow operations on whole volumes (NDHWC)."""
