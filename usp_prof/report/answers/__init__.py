"""Answers that are not a run's report: checks, comparisons, trends."""
