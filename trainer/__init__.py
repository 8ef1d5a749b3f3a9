"""A small trainer on five parallel axes, to read and to record; start at `run.py`."""
