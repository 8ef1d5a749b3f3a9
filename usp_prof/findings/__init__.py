"""What is wrong, where, and what is it worth? Rules name an edit; the engine replays and ranks them."""

from usp_prof.findings.engine import Found, find, find_all, rule, rules

__all__ = ["Found", "find", "find_all", "rule", "rules"]
