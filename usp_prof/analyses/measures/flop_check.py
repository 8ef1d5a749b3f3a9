"""FLOP check: whether the ops of a trace run the FLOP of the model's formula, and if not, what explains it.

Example: the weights' ops count 4/3 of the formula where forward is run again in backward. Attention's ops count 7/12 of
it where a causal mask leaves half of the square, and fused backward makes the scores again (7 products in place of 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.analyses.formulas import Family
from usp_prof.model import flops

if TYPE_CHECKING:
    from usp_prof.analyses.kernels import KernelsResult
    from usp_prof.analyses.step_time import StepTimeResult
    from usp_prof.contract import ModelEntry
    from usp_prof.model.selection import Selection
    from usp_prof.tables.table_set import TableSet

_BATCHED = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")
_EXPLAINED = 0.03
_WEIGHTS = (
    (1.0, "as the formula"),
    (4 / 3, "forward is run again in backward (recomputation)"),
)
# What attention's ops may count over 12 · L · h · s, by products run and what the mask leaves.
_AGAIN = "fused backward makes the scores again"
_PRODUCTS = ((6 / 6, ""), (7 / 6, _AGAIN))
_RECOMPUTED = ((8 / 6, "forward is recomputed"), (9 / 6, f"{_AGAIN}, and forward is recomputed"))
_MASKS = ((1.0, "the whole square"), (0.5, "the causal mask leaves half of the square"))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the model: its FLOP by the formula and by the trace's ops, over the same steps and all devices."""

    name: str
    model: float
    trace: float
    why: str

    @property
    def ratio(self) -> float:
        """The trace's over the model's."""
        return self.trace / self.model if self.model else float("nan")


def flop_ratio(parts: tuple[Part, ...]) -> float:
    """Give all of the trace's FLOP over all of the model's."""
    model = sum(part.model for part in parts)
    return sum(part.trace for part in parts) / model if model else float("nan")


def check(
    tables: TableSet, selection: Selection, model: ModelEntry | None, work: KernelsResult, times: StepTimeResult
) -> tuple[Part, ...]:
    """Set the two side by side; nothing where ranks are missing, or tokens, model or shapes are not known."""
    manifest = tables.manifest
    known = manifest is not None and manifest.tokens_per_step and times.job
    if manifest is None or model is None or not known or selection.ranks is not None:
        return ()
    worlds = {int(size) for rank in tables.ranks for size in tables.columns("ranks", rank)["world_size"]}
    counted = [op for op in work.ops if op.flop]
    if max(worlds, default=0) > len(tables.ranks) or not counted or not work.total_ns or flops.per_token(model) is None:
        return ()
    tokens = float(manifest.tokens_per_step) * len(times.job)
    attention = sum(op.flop for op in counted if _is_attention(op.family, op.name))
    weights = sum(op.flop for op in counted) - attention
    needs = flops.parts(model)
    uncovered = 1 - work.covered_ns / work.total_ns
    body = _part("weights", (needs["layers"] + needs["head"]) * tokens, weights, _WEIGHTS, uncovered)
    again = body.ratio > (1 + 4 / 3) / 2
    return (
        body,
        _part("attention", needs["attention"] * tokens, attention, _attention_reasons(again=again), uncovered),
    )


def _attention_reasons(*, again: bool) -> tuple[tuple[float, str], ...]:
    """List what attention may come to; recomputation only where the weights were multiplied again too."""
    products = _PRODUCTS + (_RECOMPUTED if again else ())
    return tuple(
        (count * left, " and ".join(filter(None, (mask, product))))
        for count, product in products
        for left, mask in _MASKS
    )


def _is_attention(family: str, name: str) -> bool:
    return family == Family.ATTENTION or name in _BATCHED


def _part(name: str, model: float, trace: float, reasons: tuple[tuple[float, str], ...], uncovered: float) -> Part:
    ratio = trace / model if model else float("nan")
    near = [(abs(ratio / known - 1), why) for known, why in reasons]
    distance, why = min(near)
    if distance > _EXPLAINED:
        between = "between the causal half and the whole square: blocks on the diagonal are computed whole"
        more = "more than one pass: recomputation, padding, or work that several ranks repeat"
        less = f"less than the formula: ops without formula or shapes ({100 * uncovered:.0f} % of compute time)"
        why = more if ratio > 1 else between if name == "attention" and ratio > 1 / 2 else less
    return Part(name, model, trace, why)
