"""A small five-axis trainer: reads top to bottom, starting at `run.py`."""
