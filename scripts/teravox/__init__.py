"""teravox: train on whole medical volumes, and prove afterwards how every number came about."""

__version__ = "0.1.0"
