"""Completeness checks: data that the trace should contain but lacks, with the size of each gap."""
