"""Sections on findings, health and clocks."""

from __future__ import annotations

from usp_prof.analyses.clock import ClockResult
from usp_prof.findings.causes import causes_of
from usp_prof.report.document import Block, Findings, Health
from usp_prof.report.figures import Context
from usp_prof.report.sections.plain import key_figures, length, listing_table


def build_findings(context: Context) -> list[Block]:
    """Build the list of findings: the most important causes first, all others folded."""
    if not context.findings:
        return []
    shown = causes_of(context.findings).shown
    shown_findings = [listed_finding for cause in shown for listed_finding in (cause.finding, *cause.parts)]
    rest = tuple(
        finding
        for finding in context.findings
        if not any(finding is listed_finding for listed_finding in shown_findings)
    )
    rest = tuple(finding for cause in shown for finding in cause.parts) + rest
    return [Findings(shown, rest=rest, title="", proofs=True)]


# Health: every row about damaged or missing input.


def build_health(context: Context) -> list[Block]:
    """Build the list of rows, worst first."""
    order = ("data_loss", "error", "info")
    rows = sorted(context.health, key=lambda row: (order.index(row.severity), row))
    return [Health(tuple(rows), title="")]


# Clocks: the offset of each rank's clock, and the residual.

_RANKS = ("rank", "host", "offset_ns", "drift_ppm", "residual_p50_ns", "residual_p99_ns", "ties", "component")
_RANKS_HEADS = {"ties": "calls used"}


def build_clock(context: Context, result: ClockResult) -> list[Block]:
    """Build the correction and residual of each rank."""
    blocks: list[Block] = [*key_figures(context, "clock")]
    listing = result.listing()
    if length(listing) > 1:
        blocks.append(listing_table(listing, "Ranks", _RANKS, _RANKS_HEADS, rows=64))
    return blocks
