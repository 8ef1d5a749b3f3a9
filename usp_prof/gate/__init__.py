"""Regression gate: baseline, policy, judgment of each metric, and verdict of the whole check; no output formats."""
