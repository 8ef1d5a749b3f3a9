"""Sweep: configurations run with the trainer one after another, their results, and a comparison with the planner."""
