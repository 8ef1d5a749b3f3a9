from __future__ import annotations

from dataclasses import replace

import pytest

from usp_prof.analyses.measures import flop_check
from usp_prof.analyses.measures.flop_check import Range
from usp_prof.analyses.measures.kernel_tally import PACED, OpStat
from usp_prof.contract import ModelEntry
from usp_prof.replay.backward import Recomputation

MODEL = ModelEntry(
    layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn_hidden=128, vocab=100, sequence=32, parameters=90_000
)
ATTENTION = 12 * 2 * 64 * 32
HEAD = 100 * 64


def op(name: str, family: str, flop: float, time_ns: int) -> OpStat:
    return OpStat(name, "", family, "", is_attributed=True, time_ns=time_ns, flop=flop)


@pytest.mark.parametrize(
    ("factor", "word"),
    [(1.0, "matches the formula"), (4 / 3, "recomputation"), (1.6, "padding"), (0.7, "without formula")],
)
def test_a_difference_in_flops_is_named(factor: float, word: str) -> None:
    part = flop_check._part("weights", 100.0, 100.0 * factor, flop_check.WEIGHT_REASONS, 0.2)
    assert word in part.why


def test_extra_work_is_not_called_recomputation_if_none_runs() -> None:
    work = flop_check.Traced(4 / 3 * 6 * (90_000 - HEAD) * 100, ATTENTION * 50, 1e9, 1e9, 0, 1_000)
    weights = {
        again: flop_check.compare_work(MODEL, 100.0, work, is_recomputed=again)[0].why for again in (False, True)
    }
    assert "recomputation" not in weights[False]
    assert "attention that tensor parallelism does not split" in weights[False]


@pytest.mark.parametrize(
    ("factor", "again", "word"),
    [
        (1.0, False, "full attention"),
        (7 / 12, False, "recomputes the scores"),
        (9 / 12, True, "forward is recomputed"),
        # A ring of four with full diagonal blocks: 10 of 16 blocks, seven products instead of six.
        (10 / 16 * 7 / 6, False, "blocks on the diagonal"),
        (0.2, False, "without formula"),
    ],
)
def test_a_difference_in_attention_is_named(factor: float, again: bool, word: str) -> None:
    reasons = flop_check.attention_reasons(is_recomputed=again)
    assert word in flop_check._part("attention", 100.0, 100.0 * factor, reasons, 0.2).why


def test_recorded_shapes_add_up_to_the_flop() -> None:
    ops = [
        op("aten::mm", "matrix product", 8e6, 1_000),
        op("aten::bmm", "matrix product", 2e6, 1_000),
        op("aten::_flash_attention_forward", "attention", 1e6, 500),
        op("triton_fused", "", 0.0, 700),
        op(PACED, "", 0.0, 9_000),
    ]
    work = flop_check.traced_work(ops, 12_200)
    assert work is not None
    assert (work.weights, work.attention, work.flop) == (8e6, 3e6, 11e6)
    assert work.product_rate == pytest.approx(10e6 / 2_000e-9)
    assert work.best_rate == pytest.approx(8e6 / 1_000e-9)
    assert work.uncovered_ns == 700
    # 6% of the time at the best known rate; half of the time at the peak.
    assert work.hidden_flop(1e12) == pytest.approx(700e-9 * work.best_rate)
    assert replace(work, uncovered_ns=6_100).hidden_flop(1e13) == pytest.approx(6_100e-9 * 1e13)
    assert flop_check.traced_work([op("triton_fused", "", 0.0, 700)], 700) is None


def test_the_expected_flops_of_a_model_are_a_range() -> None:
    """Minimum: no embedding, no head, causal attention. Maximum: both, full attention, and one more forward."""
    limits = flop_check.model_work(MODEL, "palm", 10, None)
    assert limits is not None
    weights = 6 * 90_000
    assert limits.least == pytest.approx(10 * (weights - 2 * 6 * HEAD + ATTENTION / 2))
    assert limits.most == pytest.approx(10 * (weights * 4 / 3 + ATTENTION * 9 / 6))
    none_again = flop_check.model_work(MODEL, "palm", 10, Recomputation(0.0, float("nan")))
    assert none_again is not None
    assert none_again.most == pytest.approx(10 * (weights + ATTENTION * 7 / 6))
    tied = flop_check.model_work(replace(MODEL, tied_embeddings=True), "palm", 10, None)
    assert tied is not None
    assert tied.least == pytest.approx(10 * (weights - 6 * HEAD + ATTENTION / 2))
    assert flop_check.model_work(ModelEntry(), "palm", 10, None) is None


@pytest.mark.parametrize(
    ("trace", "word"),
    [
        (Range(100, 100), ""),
        (Range(70, 200), ""),  # ops without a formula may account for the rest
        (Range(140, 140), ""),
        (Range(160, 160), "1.33 times the most"),
        (Range(70, 70), "0.7 times the least"),
    ],
)
def test_only_differences_beyond_the_tolerance_are_contradictions(trace: Range, word: str) -> None:
    text = flop_check.contradiction(Range(100, 120), trace, flop_check.TOLERANCE)
    assert word in text
    assert bool(word) is bool(text)


def test_experts_and_missing_ranks_loosen_the_tolerance() -> None:
    assert flop_check.tolerance(MODEL, is_whole=True) == flop_check.TOLERANCE
    assert flop_check.tolerance(MODEL, is_whole=False) == flop_check.LOOSE_TOLERANCE
    assert flop_check.tolerance(replace(MODEL, experts=8), is_whole=True) == flop_check.LOOSE_TOLERANCE
    noted = replace(MODEL, notes=["vision layers are not counted"])
    assert flop_check.tolerance(noted, is_whole=True) == flop_check.LOOSE_TOLERANCE
    declared = ModelEntry(flop_per_token={"palm": 1e9})
    assert flop_check.tolerance(declared, is_whole=True) == flop_check.LOOSE_TOLERANCE
