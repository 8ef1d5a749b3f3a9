"""Replay of a run: a graph of work and dependencies, and the longest path through it."""
