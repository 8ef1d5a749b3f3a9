"""What is wrong with the input? The rows of health as a table."""

from __future__ import annotations

from usp_prof.model.schema import RANK, Schema, integer, text

SCHEMA = Schema(
    "health",
    "Damage and gaps: what was found, how often, and what cannot be known because of it. Rank -1 is the run.",
    (
        RANK,
        text("code", "Short name of the fault."),
        text("severity", "info, error or data_loss."),
        integer("count", "How often."),
        text("detail", "What it is and what it means for the figures."),
        text("file", "File."),
    ),
)
