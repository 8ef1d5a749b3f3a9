"""FLOP check: the work of a trace's ops beside what a model's formula asks for, and inputs that the two contradict.

The weights' ops count 4/3 of the formula where forward is run again in backward. Attention's ops count 7/12 of it where
a causal mask leaves half of the square, and fused backward recomputes the scores (7 products in place of 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

from usp_prof import conventions
from usp_prof.analyses.formulas import Family
from usp_prof.analyses.measures.kernel_tally import PACED
from usp_prof.model import flops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.analyses.measures.kernel_tally import OpStat
    from usp_prof.contract import ModelEntry
    from usp_prof.replay.backward import Recomputation

_BATCHED = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")
_EXPLAINED = 0.03
_SMALL_UNCOVERED = 0.2
WEIGHT_REASONS = (
    (1.0, "as the formula"),
    (4 / 3, "forward is run again in backward (recomputation)"),
)
# What attention's ops may count over 12 · L · h · s, by products run and what the mask leaves.
_AGAIN = "fused backward recomputes the scores"
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


@dataclass(frozen=True, slots=True)
class Traced:
    """The FLOP that the ops' shapes tell, and the compute time whose work they do not, over ranks and steps."""

    weights: float
    attention: float
    product_rate: float
    """FLOP per second of the matrix products in their kernels; NaN where there are none."""
    best_rate: float
    """FLOP per second of the op that runs fastest."""
    uncovered_ns: int
    total_ns: int

    @property
    def flop(self) -> float:
        """All FLOP together."""
        return self.weights + self.attention

    def hidden_flop(self, peak: float) -> float:
        """Give the most FLOP that ops without shapes or formula may run.

        A small part of the time holds no faster products than those that are known; a large part may be the products
        themselves, up to the peak.
        """
        is_small = self.uncovered_ns < _SMALL_UNCOVERED * self.total_ns
        return self.uncovered_ns / 1e9 * (self.best_rate if is_small else max(peak, self.best_rate))


def traced(ops: Sequence[OpStat], total_ns: int) -> Traced | None:
    """Add up what the ops tell; `None` where no shapes were recorded."""
    counted = [op for op in ops if op.flop]
    if not counted or not total_ns:
        return None
    attention = sum(op.flop for op in counted if _is_attention(op.family, op.name))
    products = [op for op in counted if op.family == Family.PRODUCT]
    product_ns = sum(op.time_ns for op in products)
    rate = sum(op.flop for op in products) / product_ns * 1e9 if product_ns else float("nan")
    uncovered = sum(op.time_ns for op in ops if not op.family and op.name != PACED)
    best = max((op.flop / op.time_ns * 1e9 for op in counted if op.time_ns), default=0.0)
    return Traced(sum(op.flop for op in counted) - attention, attention, rate, best, uncovered, total_ns)


def compared(model: ModelEntry, tokens: float, work: Traced, *, is_recomputed: bool) -> tuple[Part, ...]:
    """Compare the model's FLOP of these tokens with the trace's, and name what explains a difference.

    `is_recomputed` is false where the ops or the manifest show that no forward runs again: more FLOP then have another
    reason.
    """
    needs = flops.parts(model)
    uncovered = work.uncovered_ns / work.total_ns
    weight_reasons = WEIGHT_REASONS if is_recomputed else WEIGHT_REASONS[:1]
    body = _part(
        "weights",
        (needs["layers"] + needs["head"]) * tokens,
        work.weights,
        weight_reasons,
        uncovered,
        again=is_recomputed,
    )
    reasons = attention_reasons(again=is_recomputed and body.ratio > (1 + 4 / 3) / 2)
    attention = needs["attention"] * tokens
    return body, _part("attention", attention, work.attention, reasons, uncovered, again=is_recomputed)


def attention_reasons(*, again: bool) -> tuple[tuple[float, str], ...]:
    """List what attention may come to; recomputation only where the weights were multiplied again too."""
    products = _PRODUCTS + (_RECOMPUTED if again else ())
    return tuple(
        (count * left, " and ".join(filter(None, (mask, product))))
        for count, product in products
        for left, mask in _MASKS
    )


def _is_attention(family: str, name: str) -> bool:
    return family == Family.ATTENTION or name in _BATCHED


def _part(
    name: str,
    model: float,
    trace: float,
    reasons: tuple[tuple[float, str], ...],
    uncovered: float,
    *,
    again: bool = True,
) -> Part:
    ratio = trace / model if model else float("nan")
    near = [(abs(ratio / known - 1), why) for known, why in reasons]
    distance, why = min(near)
    if distance > _EXPLAINED:
        between = "between the causal half and the whole square: blocks on the diagonal are computed whole"
        more = f"more than one pass: {'recomputation, ' if again else ''}padding, or work that several ranks repeat"
        more += ", such as attention that tensor parallelism leaves whole"
        less = f"less than the formula: ops without formula or shapes ({100 * uncovered:.0f}% of compute time)"
        why = more if ratio > 1 else between if name == "attention" and ratio > 1 / 2 else less
    return Part(name, model, trace, why)


# Contradiction: FLOP that no reading of the inputs explains. A model has a range, since the trace does not tell all:
#
#   least   every weight of the layers once forward and twice backward, causal attention; the head may be one kernel
#           with the loss, of which no shapes tell
#   most    head and whole attention, and forward again as often as the ops show (once where they do not tell); the
#           input embedding, which `palm` counts, stands for what a description does not say of a tied head
#
# The trace has a range, too: ops without shapes or formula may have run nothing, or as much as their time allows. Where
# the two ranges lie further apart than the tolerance, the model or the tokens are those of another run.

TOLERANCE = 1.25
"""Of a whole job: biases, norms, routers and padding are far less than a quarter."""
LOOSE_TOLERANCE = 2.0
"""Of some of the ranks (stages hold unequal parts), of experts (padded to their capacity), of FLOP only declared."""
RATE_TOLERANCE = 1.1
"""Of a peak: clocks may exceed those of the data sheet."""


@dataclass(frozen=True, slots=True)
class Range:
    """Least and most FLOP of a step of the whole job."""

    least: float
    most: float


def of_model(model: ModelEntry, convention: str, tokens: float, again: Recomputation | None) -> Range | None:
    """Give the FLOP that a step of so many tokens may run; `None` where the model gives none."""
    per_token = flops.per_token(model, convention)
    if not per_token:
        return None
    whole = conventions.attention_flop_per_token(model) or 0.0
    recurrence = conventions.recurrence_flop_per_token(model)
    weights = per_token - (conventions.attention_flop_per_token(model, convention) or 0.0) - recurrence
    # `palm` counts the input embedding beside the head where the two are not one.
    matrices = 2 if convention == conventions.PALM and not model.tied_embeddings else 1
    least_weights = weights - matrices * 6.0 * conventions.vocabulary_parameters(model)
    products = 1.0 if again is None else again.products
    scores = products if again is None or isnan(again.attention) else again.attention
    # Attention: 6 products, 7 where backward makes the scores again, 2 more where forward runs again.
    most = (weights + recurrence) * (1 + products / 3) + whole * (7 + 2 * scores) / 6
    return Range((max(least_weights, 0.0) + whole / 2) * tokens, most * tokens)


def tolerance(model: ModelEntry, *, is_whole: bool) -> float:
    """Give the factor by which model and trace may differ before one of them is called wrong."""
    is_counted = conventions.multiplying_parameters(model) is not None and not model.experts
    # Notes name parts that the description leaves out, such as a vision model.
    return TOLERANCE if is_counted and is_whole and not model.notes else LOOSE_TOLERANCE


def contradiction(model: Range, trace: Range, factor: float) -> str:
    """Say how the trace's FLOP contradict the model's; empty where they do not."""
    if trace.least > model.most * factor:
        return f"{trace.least / model.most:.3g} times the most that model and tokens explain"
    if trace.most * factor < model.least:
        return f"{trace.most / model.least:.3g} times the least that model and tokens need"
    return ""
