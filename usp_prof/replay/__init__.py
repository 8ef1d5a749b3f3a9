"""Replay: the run as a graph of work and dependencies, and the longest path through it."""
