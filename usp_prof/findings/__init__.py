"""Findings: what is wrong, where, and what it is worth. Rules name an edit; the engine replays and ranks them."""

from usp_prof.findings.draft import all_rules, rule
from usp_prof.findings.engine import Found, find, find_all

__all__ = ["Found", "all_rules", "find", "find_all", "rule"]
