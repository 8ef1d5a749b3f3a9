"""Predicted step: equal to arithmetic by hand, and consistent with theory when inputs change."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import EXPERTS, LLAMA_8B, MACHINE, PLAIN, PLAIN_TRAINER, cases

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner import compute
from usp_prof.extras.planner.cluster import Cluster, cluster_of
from usp_prof.extras.planner.predict import Prediction, predict
from usp_prof.extras.planner.profiles import PROFILES, Profile
from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.schedule import Schedule, Shape

HEADLESS = replace(PLAIN, vocab=1)
FAST = replace(MACHINE, network_latency_ns=0, node_latency_ns=0, link_rate=1e18, network_rate=1e18)


def plain(
    model: ModelEntry, configuration: Configuration, cluster: Cluster = MACHINE, profile: Profile = PLAIN_TRAINER
) -> Prediction:
    """Predict by the formulas alone."""
    return predict(model, configuration, cluster, profile=profile)


def test_compute_takes_at_least_the_flops_over_the_reached_rate() -> None:
    prediction = plain(LLAMA_8B, Configuration(micro_batches=4))
    flop = 4 * 8192 * (6 * 7.5e9 + 6 * 32 * 4096 * 8192)
    assert 1.0 < prediction.compute_ns / (flop / 0.5e15 * 1e9) < 1.5


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("micro_batches", [8, 64])
def test_an_even_pipeline_has_the_textbook_bubble(schedule: str, micro_batches: int) -> None:
    prediction = plain(HEADLESS, Configuration(pp=4, micro_batches=micro_batches, schedule=schedule), FAST)
    window = prediction.compute_ns + prediction.bubble_ns
    textbook = Schedule(schedule).traits.bubble(Shape(4, micro_batches))
    assert prediction.bubble_ns / window == pytest.approx(textbook, abs=1e-2)


def test_more_chunks_and_split_backward_shorten_the_bubble() -> None:
    chunks_of = {"1f1b": 1, "interleaved": 2, "zb-h1": 1, "zbv": 2}
    bubbles = [
        plain(HEADLESS, Configuration(pp=4, micro_batches=16, schedule=name, chunks=chunks), FAST).bubble_ns
        for name, chunks in chunks_of.items()
    ]
    assert bubbles == sorted(bubbles, reverse=True)
    assert bubbles[0] == pytest.approx(2 * bubbles[1], rel=0.02)


def test_recomputation_costs_a_third_of_compute() -> None:
    without = plain(HEADLESS, Configuration())
    again = plain(HEADLESS, Configuration(recompute=Recompute.FULL))
    assert 1.25 < again.compute_ns / without.compute_ns < 4 / 3
    assert again.footprint.activation_bytes < without.footprint.activation_bytes


def test_tensor_parallel_messages_are_exposed_eight_times_per_layer() -> None:
    prediction = plain(LLAMA_8B, Configuration(tp=8, micro_batches=2))
    message_s = 8 * 1e-6 + 8192 * 4096 * 2 * 7 / 8 / (400e9 * (1 - 0.92 / 64))
    assert prediction.exposed_ns["tp"] == pytest.approx(8 * message_s * 1e9 * 32 * 2, rel=1e-6)


def test_tensor_parallelism_across_nodes_costs_more() -> None:
    inside = plain(LLAMA_8B, Configuration(tp=8))
    across = plain(LLAMA_8B, Configuration(tp=16))
    assert across.exposed_ns["tp"] > 1.1 * inside.exposed_ns["tp"]


def test_a_long_backward_hides_all_gradients_but_the_last_bucket() -> None:
    hidden = plain(LLAMA_8B, Configuration(dp=8))
    shown = plain(LLAMA_8B, Configuration(dp=8), replace(MACHINE, link_rate=1e9))
    assert hidden.exposed_ns["dp"] < 0.05 * hidden.step_ns
    assert shown.exposed_ns["dp"] > 0.5 * shown.step_ns


def test_exposed_gradients_grow_with_the_ring() -> None:
    few, many = (plain(LLAMA_8B, Configuration(dp=dp), profile=PROFILES["nanotron"]) for dp in (16, 512))
    assert many.exposed_ns["dp"] > 2 * few.exposed_ns["dp"]


def test_weights_gathered_during_the_next_forward_expose_their_first_bucket() -> None:
    slow = replace(MACHINE, link_rate=20e9)
    after, beside = (
        plain(LLAMA_8B, Configuration(dp=8, zero=1), slow, replace(PLAIN_TRAINER, gathers_beside=flag)).exposed_ns["dp"]
        for flag in (0, 1)
    )
    assert beside < after - 0.1e9
    unhidden = plain(
        LLAMA_8B, Configuration(dp=8, zero=1), slow, replace(PLAIN_TRAINER, gathers_beside=1, data_overlap=0)
    )
    assert unhidden.exposed_ns["dp"] > after


@pytest.mark.parametrize("trainer", sorted(PROFILES))
def test_large_8_bit_products_are_faster_than_16_bit_ones(trainer: str) -> None:
    wide, narrow = (
        plain(LLAMA_8B, Configuration(dp=8, zero=1, micro_batches=4), cluster_of("H100", dtype), PROFILES[trainer])
        for dtype in ("bf16", "fp8")
    )
    assert 1.15 < wide.compute_ns / narrow.compute_ns < 1.8


@pytest.mark.parametrize(("device", "slower_device"), [("MI355X", "MI350X"), ("MI300X", "MI300A")])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_chip_with_less_power_or_fewer_units_is_slower(device: str, slower_device: str, dtype: str) -> None:
    """Without a measurement, 75% of the peak was assumed, which neither chip reaches."""
    rates = [
        cluster.peak_flops * cluster.efficiency
        for cluster in (cluster_of(device, dtype), cluster_of(slower_device, dtype))
    ]
    assert 0.7 * rates[0] < rates[1] < 0.9 * rates[0]


def test_a_type_that_was_not_measured_reaches_the_share_of_a_wider_one() -> None:
    assert cluster_of("MI355X", "fp8").efficiency == cluster_of("MI355X", "bf16").efficiency < 0.65
    assert cluster_of("B300", "fp4").efficiency == cluster_of("B300", "fp8").efficiency


def test_attention_is_as_fast_next_to_8_bit_products() -> None:
    wide, narrow = (cluster_of("H100", dtype) for dtype in ("bf16", "fp8"))
    assert narrow.core_flops * narrow.core_efficiency == wide.core_flops * wide.core_efficiency


def test_attention_with_small_heads_is_slower() -> None:
    """Heads of 64 have half the FLOPs per exponential; on an H100, 128 exponentials take half as long as products."""
    times = [
        compute.core_times(
            cases(
                Configuration(),
                model=replace(LLAMA_8B, heads=heads, kv_heads=heads, head_dim=size),
                cluster=cluster_of("H100"),
            )
        )
        for heads, size in ((32, 128), (64, 64))
    ]
    assert float(times[1].forward[0] / times[0].forward[0]) == pytest.approx(2 / 1.5, rel=0.01)
    assert 1.1 < float(times[1].backward[0] / times[0].backward[0]) < 1.25


def test_unfused_operations_move_more_bytes() -> None:
    fused, eager = (
        plain(LLAMA_8B, Configuration(), profile=replace(PLAIN_TRAINER, is_eager=flag)).compute_ns for flag in (0, 1)
    )
    assert 1.01 * fused < eager < PLAIN_TRAINER.eager_scale * fused


def test_context_parallelism_is_not_free() -> None:
    replicated = plain(LLAMA_8B, Configuration(dp=8, micro_batches=1))
    ring = plain(LLAMA_8B, Configuration(cp=8, micro_batches=8))
    assert ring.step_ns > 1.02 * replicated.step_ns


def test_experts_exchange_tokens() -> None:
    assert plain(EXPERTS, Configuration(dp=4, ep=4)).exposed_ns["ep"] > 0
    assert "ep" not in plain(EXPERTS, Configuration(dp=4)).exposed_ns


def test_small_experts_are_less_efficient_than_one_large_block() -> None:
    """The same FLOP in 64 narrow experts takes longer than in 8 wide ones."""
    wide = replace(EXPERTS, experts=8, experts_per_token=2, expert_ffn_hidden=2048)
    narrow = replace(EXPERTS, experts=64, experts_per_token=16, expert_ffn_hidden=256)
    assert plain(narrow, Configuration()).compute_ns > 1.2 * plain(wide, Configuration()).compute_ns


def test_a_launch_bound_layer_is_never_faster_than_its_host() -> None:
    slow = replace(PLAIN_TRAINER, host_layer=3.0)
    assert plain(HEADLESS, Configuration(), profile=slow).step_ns == pytest.approx(8 * 3e9, rel=1e-3)


def test_launches_that_finish_before_the_layer_hardly_delay_it() -> None:
    device_bound = plain(LLAMA_8B, Configuration(micro_batches=4)).compute_ns
    layer_s = device_bound / 1e9 / 4 / LLAMA_8B.layers
    with_host = plain(
        LLAMA_8B, Configuration(micro_batches=4), profile=replace(PLAIN_TRAINER, host_layer=0.7 * layer_s)
    )
    assert device_bound <= with_host.compute_ns < 1.02 * device_bound


def test_unfused_attention_reads_and_writes_its_scores() -> None:
    fused = plain(LLAMA_8B, Configuration(tp=8))
    unfused = plain(LLAMA_8B, Configuration(tp=8, fused_attention=False))
    assert unfused.compute_ns > 1.5 * fused.compute_ns


@settings(max_examples=25)
@given(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([8, 16, 40]), st.sampled_from([0, 1, 3]),
    st.sampled_from(sorted(PROFILES)),
)  # fmt: skip
def test_the_parts_add_up_to_the_step(tp: int, pp: int, micro_batches: int, zero: int, trainer: str) -> None:
    configuration = Configuration(dp=2, tp=tp, pp=pp, zero=zero, micro_batches=micro_batches)
    prediction = plain(PLAIN, configuration, profile=PROFILES[trainer])
    assert 0 <= prediction.bubble_fraction < 1
    assert 0 < prediction.mfu < 1
    parts = (
        prediction.compute_ns
        + sum(prediction.exposed_ns.values())
        + prediction.bubble_ns
        + prediction.optimizer_ns
        + prediction.fixed_ns
    )
    assert parts == pytest.approx(prediction.step_ns)
    assert prediction.step_low_ns < prediction.step_ns < prediction.step_high_ns


def test_compute_does_not_depend_on_how_weights_are_gathered() -> None:
    """ZeRO-3's exposed gathers are among the layers: they are communication, not compute."""
    slow = replace(MACHINE, link_rate=1e9)
    replicated, sharded = (plain(LLAMA_8B, Configuration(dp=8, zero=zero), slow) for zero in (1, 3))
    assert sharded.compute_ns == pytest.approx(replicated.compute_ns, rel=1e-6)
    assert sharded.exposed_ns["dp"] > replicated.exposed_ns["dp"]


@pytest.mark.parametrize(("trainer", "ep", "divided"), [("megatron", 4, 2), ("torchtitan", 4, 1), ("usp-prof", 1, 1)])
def test_experts_are_divided_by_tp_as_the_trainer_does(trainer: str, ep: int, divided: int) -> None:
    """Ours and torchtitan do not divide them, so their weights used to be counted too small."""
    usual = Configuration(dp=4, tp=2, ep=ep, micro_batches=2)
    parts = [
        predict(EXPERTS, replace(usual, etp=etp), MACHINE, profile=PROFILES[trainer]).footprint.parameter_bytes
        for etp in (0, divided)
    ]
    assert parts[0] == parts[1]
