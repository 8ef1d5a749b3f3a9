"""Findings: problems of a run with location and gain. Rules propose edits; the engine replays and ranks them."""

from usp_prof.findings.engine import find, find_all
from usp_prof.findings.registry import all_rules, rule
from usp_prof.model.finding import Found

__all__ = ["Found", "all_rules", "find", "find_all", "rule"]
