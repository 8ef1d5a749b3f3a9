"""Planner: memory and time of configurations that were never run, and the best of them."""
