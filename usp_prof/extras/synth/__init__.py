"""Synthetic traces: declared, simulated and written runs for which the truth of every metric is known."""
