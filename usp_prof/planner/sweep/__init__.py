"""Sweep: configurations run with the trainer one after another, their table, and the planner compared with it."""
