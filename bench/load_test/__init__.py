"""The parts of the load test (``load.py``)."""
