"""Synthetic: what makes a run other than it would be: paced compute and injected faults."""
