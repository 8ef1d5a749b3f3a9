"""Is a predicted step what the arithmetic by hand gives, and does the pipeline behave as theory says?"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import EXPERTS, LLAMA_8B, MACHINE, PLAIN

from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.model.flops import per_token
from usp_prof.planner.prediction import predict

HEADLESS = replace(PLAIN, vocab=1)


def test_one_device_computes_its_flop_and_streams_its_optimizer() -> None:
    found = predict(PLAIN, Configuration(micro_batches=4), MACHINE, "causal")
    flop = (per_token(PLAIN, "causal") or 0) * 4 * 512
    stored = 4 * 16 * PLAIN.hidden  # the norms' weights are no factors of a product
    assert found.compute_ns == pytest.approx(flop / 0.5e15 * 1e9, rel=1e-4)
    assert found.optimizer_ns == pytest.approx(2 * (found.footprint.parameter_bytes * 8) / 2e12 * 1e9, rel=stored)
    assert found.step_ns == pytest.approx(found.compute_ns + found.optimizer_ns)
    assert found.mfu == pytest.approx(0.5 * found.compute_ns / found.step_ns, rel=1e-4)


@pytest.mark.parametrize(("schedule", "micro_batches"), [("1f1b", 8), ("gpipe", 8), ("1f1b", 64)])
def test_an_even_pipeline_has_the_textbook_bubble(schedule: str, micro_batches: int) -> None:
    fast = replace(MACHINE, network_latency_ns=0, node_latency_ns=0, link_rate=1e18, network_rate=1e18)
    each = Configuration(pp=4, micro_batches=micro_batches, schedule=schedule)
    found = predict(HEADLESS, each, fast)
    window = found.compute_ns + found.bubble_ns
    assert found.bubble_ns / window == pytest.approx(3 / (micro_batches + 3), abs=2e-3)


def test_zero_bubble_has_none_to_speak_of() -> None:
    plain = predict(HEADLESS, Configuration(pp=4, micro_batches=16), MACHINE)
    zbv = predict(HEADLESS, Configuration(pp=4, micro_batches=16, schedule="zbv"), MACHINE)
    assert zbv.bubble_fraction < plain.bubble_fraction / 3


def test_recomputation_costs_a_third_of_compute() -> None:
    kept = predict(HEADLESS, Configuration(), MACHINE)
    again = predict(HEADLESS, Configuration(recompute=Recompute.FULL), MACHINE)
    assert again.compute_ns == pytest.approx(kept.compute_ns * 4 / 3, rel=1e-3)
    assert again.footprint.activation_bytes < kept.footprint.activation_bytes


def test_tensor_parallel_messages_are_exposed() -> None:
    found = predict(LLAMA_8B, Configuration(tp=8, micro_batches=2), MACHINE)
    one = 7 * 1000 + 8192 * 4096 * 2 * 7 / 8 / 400e9 * 1e9
    assert found.exposed_ns["tp"] == pytest.approx(8 * one * 32 * 2, rel=1e-6)


def test_gradients_hide_behind_a_long_backward_but_for_their_last_bucket() -> None:
    slow = replace(MACHINE, link_rate=1e9)
    hidden = predict(LLAMA_8B, Configuration(dp=8), MACHINE)
    shown = predict(LLAMA_8B, Configuration(dp=8), slow)
    assert hidden.exposed_ns["dp"] < 0.05 * hidden.step_ns
    assert shown.exposed_ns["dp"] > 0.5 * shown.step_ns


def test_experts_exchange_tokens() -> None:
    assert predict(EXPERTS, Configuration(dp=4, ep=4), MACHINE).exposed_ns["ep"] > 0
    assert "ep" not in predict(EXPERTS, Configuration(dp=4), MACHINE).exposed_ns


def test_a_launch_bound_layer_is_never_faster_than_its_host() -> None:
    bound = replace(MACHINE, host_layer_ns=3e9)
    assert predict(HEADLESS, Configuration(), bound).step_ns == pytest.approx(8 * 3e9, rel=1e-3)


@settings(max_examples=25)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([8, 16, 40]), st.sampled_from([0, 1, 3]))
def test_the_parts_add_up_to_the_step(tp: int, pp: int, micro_batches: int, zero: int) -> None:
    found = predict(PLAIN, Configuration(dp=2, tp=tp, pp=pp, zero=zero, micro_batches=micro_batches), MACHINE)
    assert 0 <= found.bubble_fraction < 1
    assert 0 < found.mfu < 1
    parts = found.compute_ns + sum(found.exposed_ns.values()) + found.bubble_ns + found.optimizer_ns
    assert parts == pytest.approx(found.step_ns)


def test_compute_is_the_same_however_weights_are_gathered() -> None:
    """ZeRO-3's exposed gathers lie among the layers: they are communication, not compute."""
    slow = replace(MACHINE, link_rate=1e9)
    whole, sharded = (predict(LLAMA_8B, Configuration(dp=8, zero=zero), slow) for zero in (1, 3))
    assert sharded.compute_ns == pytest.approx(whole.compute_ns, rel=1e-6)
