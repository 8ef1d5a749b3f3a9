"""Which share of the devices' peak becomes model, by which convention, and does the trace agree?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.model.metric import Unit
from usp_prof.report.document import Section, Text
from usp_prof.report.format import quantity
from usp_prof.report.frames import listed
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    from usp_prof.analyses.mfu import MfuResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block

_CONVENTIONS = {
    "convention": "",
    "mfu": "MFU",
    "per_token_flop": "model FLOP per token",
    "tokens_per_second": "tokens",
    "chosen": "",
}
_CHECK = {"part": "", "model_flop": "model", "trace_flop": "trace", "ratio": "trace over model", "why": ""}


def build(context: Context, title: str) -> Section | None:
    """Show MFU by every convention, the peak it is held against, and the cross-check."""
    if "mfu" not in context.results:
        return None
    result = cast("MfuResult", context.results["mfu"])
    blocks: list[Block] = [*key_figures(result)]
    if result.peak:
        peak = quantity(result.peak, Unit.FLOP_PER_SECOND)
        text = f"Held against {result.devices} devices at {peak} {result.precision} dense"
        blocks.append(Text(f"{text} ({result.peak_source})." if result.peak_source else f"{text}.", quiet=True))
    if result.flop_per_token:
        blocks.append(listed(result.listing(), "By convention", _CONVENTIONS))
    if result.parts:
        blocks.append(listed(result.check_listing(), "FLOP of a step: the model's and the trace's", _CHECK))
    return Section("mfu", title, (*blocks, *notes(result)))
