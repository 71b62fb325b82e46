"""The version of memwal, for the package that is built and for whoever asks."""

__version__ = "0.1.0"
