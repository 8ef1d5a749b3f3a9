"""Reordering: a pipeline under another schedule, from the measured durations of its actions."""
