"""FLOP check: the trace's FLOP compared with a model's formula, and inputs that the comparison contradicts.

Ops on weights have 4/3 of the formula's FLOP if forward is recomputed in backward. Attention's ops have 7/12 of it
with a causal mask, which leaves half of the square, and a fused backward, which recomputes the scores (7 products in
place of 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from usp_prof import conventions
from usp_prof.analyses.formulas import Family
from usp_prof.analyses.measures.kernel_tally import PACED, OpStat
from usp_prof.contract import ModelEntry
from usp_prof.model import flops
from usp_prof.replay.backward import Recomputation

_BATCHED = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")
_EXPLAINED = 0.03
_SMALL_UNCOVERED = 0.2
WEIGHT_REASONS = (
    (1.0, "matches the formula"),
    (4 / 3, "backward runs forward again (recomputation)"),
)
# Possible ratios of attention's FLOP to 12 · L · h · s, by products run and by the share that the mask leaves.
_SCORES_RECOMPUTED = "fused backward recomputes the scores"
_PRODUCTS = ((6 / 6, ""), (7 / 6, _SCORES_RECOMPUTED))
_RECOMPUTED = ((8 / 6, "forward is recomputed"), (9 / 6, f"{_SCORES_RECOMPUTED}, and forward is recomputed"))
_MASKS = ((1.0, "full attention"), (0.5, "the causal mask halves attention"))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the model: its FLOP by the formula and by the trace's ops, over the same steps and all devices."""

    name: str
    model: float
    trace: float
    why: str

    @property
    def ratio(self) -> float:
        """The trace's FLOP over the model's."""
        return self.trace / self.model if self.model else float("nan")


def flop_ratio(parts: tuple[Part, ...]) -> float:
    """Return the trace's total FLOP over the model's, or NaN if the model's is unknown."""
    model = sum(part.model for part in parts)
    return sum(part.trace for part in parts) / model if model else float("nan")


@dataclass(frozen=True, slots=True)
class Traced:
    """FLOP from the ops' shapes, and the compute time without known FLOP, over ranks and steps."""

    weights: float
    attention: float
    product_rate: float
    """FLOP per second of the matrix products in their kernels; NaN if there are none."""
    best_rate: float
    """FLOP per second of the fastest op."""
    uncovered_ns: int
    total_ns: int

    @property
    def flop(self) -> float:
        """Total FLOP."""
        return self.weights + self.attention

    def hidden_flop(self, peak: float) -> float:
        """Return the most FLOP that ops without shapes or formula may run.

        If they take a small part of the time, they are assumed to be at most as fast as the fastest known op. If they
        take a large part, they may be the products themselves and run at the peak.
        """
        is_small = self.uncovered_ns < _SMALL_UNCOVERED * self.total_ns
        return self.uncovered_ns / 1e9 * (self.best_rate if is_small else max(peak, self.best_rate))


def traced_work(ops: Sequence[OpStat], total_ns: int) -> Traced | None:
    """Return the sums over the ops, or `None` if no shapes were recorded."""
    counted = [op for op in ops if op.flop]
    if not counted or not total_ns:
        return None
    attention = sum(op.flop for op in counted if op.family == Family.ATTENTION or op.name in _BATCHED)
    products = [op for op in counted if op.family == Family.PRODUCT]
    product_ns = sum(op.time_ns for op in products)
    rate = sum(op.flop for op in products) / product_ns * 1e9 if product_ns else float("nan")
    uncovered_ns = sum(op.time_ns for op in ops if not op.family and op.name != PACED)
    best = max((op.flop / op.time_ns * 1e9 for op in counted if op.time_ns), default=0.0)
    return Traced(sum(op.flop for op in counted) - attention, attention, rate, best, uncovered_ns, total_ns)


def compare_work(model: ModelEntry, tokens: float, work: Traced, *, is_recomputed: bool) -> tuple[Part, ...]:
    """Compare the model's FLOP for these tokens with the trace's, and name the reason for a difference.

    `is_recomputed` is false if the ops or the manifest show that no forward is recomputed. Additional FLOP then have
    another reason.
    """
    needs = flops.parts(model)
    uncovered_fraction = work.uncovered_ns / work.total_ns
    weight_reasons = WEIGHT_REASONS if is_recomputed else WEIGHT_REASONS[:1]
    body = _part(
        "weights",
        (needs["layers"] + needs["head"]) * tokens,
        work.weights,
        weight_reasons,
        uncovered_fraction,
        is_recomputed=is_recomputed,
    )
    reasons = attention_reasons(is_recomputed=is_recomputed and body.ratio > (1 + 4 / 3) / 2)
    attention = needs["attention"] * tokens
    return body, _part("attention", attention, work.attention, reasons, uncovered_fraction, is_recomputed=is_recomputed)


def attention_reasons(*, is_recomputed: bool) -> tuple[tuple[float, str], ...]:
    """Return the possible ratios of attention's FLOP, with reasons; `is_recomputed` adds a second forward."""
    products = _PRODUCTS + (_RECOMPUTED if is_recomputed else ())
    return tuple(
        (count * mask_share, " and ".join(filter(None, (mask, product))))
        for count, product in products
        for mask_share, mask in _MASKS
    )


def _part(
    name: str,
    model: float,
    trace: float,
    reasons: tuple[tuple[float, str], ...],
    uncovered_fraction: float,
    *,
    is_recomputed: bool = True,
) -> Part:
    ratio = trace / model if model else float("nan")
    distances = [(abs(ratio / expected_ratio - 1), why) for expected_ratio, why in reasons]
    distance, why = min(distances)
    if distance > _EXPLAINED:
        between = "between causal and full attention: blocks on the diagonal are computed completely"
        more = f"more than one pass: {'recomputation, ' if is_recomputed else ''}padding, or work that several ranks "
        more += "repeat, such as attention that tensor parallelism does not split"
        less = f"less than the formula: ops without formula or shapes ({100 * uncovered_fraction:.0f}% of compute time)"
        why = more if ratio > 1 else between if name == "attention" and ratio > 1 / 2 else less
    return Part(name, model, trace, why)


# Contradiction: FLOP that no interpretation of the inputs explains. A model has a range, since the trace does not show
# everything:
#
#   least   every weight of the layers once forward and twice backward, causal attention; the head may be fused with the
#           loss into a kernel without shapes
#   most    head and full attention, and forward again as often as the ops show (once if they do not show it); the input
#           embedding, which `palm` counts, covers for descriptions that do not declare a tied head
#
# The trace has a range too: ops without shapes or formula may have run nothing, or as much as their time allows. If
# the ranges are further apart than the tolerance, the model or the tokens belong to another run.

TOLERANCE = 1.25
"""For a whole job: biases, norms, routers and padding are far less than a quarter."""
LOOSE_TOLERANCE = 2.0
"""For some of the ranks (stages are uneven), for experts (padded to capacity), and for declared FLOP."""
RATE_TOLERANCE = 1.1
"""For a peak: clocks may exceed those of the data sheet."""


@dataclass(frozen=True, slots=True)
class Range:
    """Least and most FLOP per step of the whole job."""

    least: float
    most: float


def model_work(model: ModelEntry, convention: str, tokens: float, recomputation: Recomputation | None) -> Range | None:
    """Return the range of FLOP of a step with `tokens` tokens, or `None` if the model's FLOP are unknown."""
    per_token = flops.per_token(model, convention)
    if not per_token:
        return None
    attention = conventions.attention_flop_per_token(model) or 0.0
    recurrence = conventions.recurrence_flop_per_token(model)
    weights = per_token - (conventions.attention_flop_per_token(model, convention) or 0.0) - recurrence
    # `palm` counts the input embedding in addition to the head if they are not tied.
    matrices = 2 if convention == conventions.PALM and not model.tied_embeddings else 1
    least_weights = weights - matrices * 6.0 * conventions.vocabulary_parameters(model)
    products = 1.0 if recomputation is None else recomputation.products
    scores = products if recomputation is None or isnan(recomputation.attention) else recomputation.attention
    # Attention: 6 products, 7 if backward recomputes the scores, 2 more if forward is recomputed.
    most = (weights + recurrence) * (1 + products / 3) + attention * (7 + 2 * scores) / 6
    return Range((max(least_weights, 0.0) + attention / 2) * tokens, most * tokens)


def tolerance(model: ModelEntry, *, is_whole: bool) -> float:
    """Return the factor by which model and trace may differ before they count as contradicting."""
    is_counted = conventions.multiplying_parameters(model) is not None and not model.experts
    # Notes name parts that the description leaves out, such as a vision model.
    return TOLERANCE if is_counted and is_whole and not model.notes else LOOSE_TOLERANCE


def contradiction(model: Range, trace: Range, factor: float) -> str:
    """Return how the trace's FLOP contradict the model's, or an empty string if they do not."""
    if trace.least > model.most * factor:
        return f"{trace.least / model.most:.3g} times the most that model and tokens explain"
    if trace.most * factor < model.least:
        return f"{trace.most / model.least:.3g} times the least that model and tokens need"
    return ""
