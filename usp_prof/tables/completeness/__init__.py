"""Completeness checks: what the trace promises but does not hold, with the size of each gap."""
