"""Synthetic traces: runs that are declared, simulated and written, so that the truth of every figure is known."""
