"""Measures shared by several analyses, computed once per run: partition, arrivals, op work, pipeline actions."""
