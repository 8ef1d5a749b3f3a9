"""Measures that several analyses share, once a run: partition of steps, arrivals, op work, pipeline actions."""
