"""Answers of the planner as documents and text: plans, one plan, maps of degrees, sweeps."""
