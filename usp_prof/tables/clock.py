"""How far apart are the ranks' clocks, and how sure are we?"""

from __future__ import annotations

from usp_prof.model.schema import RANK, Schema, Scope, integer, real, text

SCHEMA = Schema(
    "clock",
    "Offset and drift of each rank's clock against the reference, solved from the ends of collectives.",
    (
        RANK,
        text("host", "Host; ranks of one host share one clock."),
        integer("component", "Connected component; ranks of different components cannot be compared."),
        integer("offset_ns", "Add this to the rank's times at `reference_ns` to get common time.", "ns"),
        real("drift_ppm", "Drift against the reference; NaN when the window is too short.", "ppm"),
        integer("reference_ns", "Time at which the offset holds, on the rank's own clock.", "ns"),
        integer("residual_p50_ns", "Median disagreement of ends after alignment; -1 without ties.", "ns"),
        integer("residual_p99_ns", "99th percentile.", "ns"),
        integer("ties", "Number of calls that tie it."),
    ),
    Scope.RUN,
)
