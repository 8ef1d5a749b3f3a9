"""Metamorphic tests of predictions: how they change with one input, on random configurations."""

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planned import EXPERTS, LLAMA_8B, MACHINE, PLAIN, cases

from usp_prof.extras.planner import memory
from usp_prof.extras.planner.cluster import Cluster
from usp_prof.extras.planner.model_rules import broken_rule
from usp_prof.extras.planner.profiles import PROFILES
from usp_prof.extras.planner.step import Step, step
from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.model.known_models import model_named

RATES = ("link_rate", "network_rate", "memory_rate")
LATENCIES = ("node_latency_ns", "network_latency_ns")
FASTER = [(name, 2.0) for name in RATES] + [(name, 0.5) for name in LATENCIES]
DEGREES = st.sampled_from([1, 2, 4, 8])
TRAINER = st.sampled_from(sorted(PROFILES))
MODELS = {"plain": PLAIN, "Llama-3-8B": LLAMA_8B, "experts": EXPERTS}
MODEL = st.sampled_from(sorted(MODELS))
NARROW = model_named("Qwen3-30B-A3B", 4096)


@st.composite
def configurations(draw: st.DrawFn, **fixed: object) -> Configuration:
    """Draw a configuration that may be illegal."""
    knobs: dict[str, object] = {
        "dp": draw(st.sampled_from([1, 2, 8, 64])), "tp": draw(DEGREES), "cp": draw(st.sampled_from([1, 2])),
        "pp": draw(st.sampled_from([1, 2, 4])), "zero": draw(st.sampled_from([0, 1, 2, 3])),
        "micro_batch": draw(st.sampled_from([1, 4])), "micro_batches": draw(st.sampled_from([4, 8, 32])),
        "recompute": draw(st.sampled_from(list(Recompute))), "sequence_parallel": draw(st.booleans()),
    }  # fmt: skip
    return Configuration(**(knobs | fixed))  # type: ignore[arg-type]


def legal(model: str, *configurations: Configuration) -> None:
    """Remove configurations that break a rule."""
    assume(not any(broken_rule(MODELS[model], configuration) for configuration in configurations))


def steps(model: str, trainer: str, *plans: Configuration, cluster: Cluster = MACHINE) -> Step:
    """Predict the steps of several configurations."""
    return step(cases(*plans, model=MODELS[model], cluster=cluster, profile=PROFILES[trainer]))


def longer_or_equal(first: float, second: float) -> bool:
    """Compare with a tolerance for rounding."""
    return first >= second * (1 - 1e-9)


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations(), st.sampled_from(FASTER))
def test_a_faster_part_of_the_machine_is_never_slower(
    model: str, trainer: str, configuration: Configuration, change: tuple[str, float]
) -> None:
    legal(model, configuration)
    name, factor = change
    faster = replace(MACHINE, **{name: getattr(MACHINE, name) * factor})
    before, after = (steps(model, trainer, configuration, cluster=cluster).seconds[0] for cluster in (MACHINE, faster))
    # Faster compute hides a little less of concurrent messages.
    assert longer_or_equal(before, after * 0.999)


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations())
def test_more_ranks_of_dp_never_communicate_less(model: str, trainer: str, configuration: Configuration) -> None:
    """Each rank keeps its work: the batch grows with dp."""
    more = replace(configuration, dp=2 * configuration.dp)
    legal(model, configuration, more)
    exposed = steps(model, trainer, configuration, more).exposed["dp"]
    assert longer_or_equal(exposed[1], exposed[0])


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations(zero=1))
def test_zero_3_never_sends_less_than_zero_1(model: str, trainer: str, configuration: Configuration) -> None:
    """ZeRO-3 also reduces gradients and gathers weights in every micro-batch. If nothing hides them, all are exposed.

    The exposed part may be smaller, because it overlaps with compute, while ZeRO-1's gather follows the optimizer.
    """
    # One message per layer or one per bucket: the number of latencies differs.
    profile = replace(PROFILES[trainer], data_overlap=0.0, gather_overlap=0.0, gather_exposed=1.0, data_latency=0.0)
    sharded = replace(configuration, zero=3)
    legal(model, configuration, sharded)
    exposed = step(cases(configuration, sharded, model=MODELS[model], profile=profile)).exposed["dp"]
    assert longer_or_equal(exposed[1], exposed[0])


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations(zero=1))
def test_zero_2_sums_the_gradients_of_every_micro_batch(model: str, trainer: str, configuration: Configuration) -> None:
    """With buckets, only a shard of the sums is stored, so gradients cannot wait for the last micro-batch."""
    sharded = replace(configuration, zero=2)
    legal(model, configuration, sharded)
    in_buckets = replace(PROFILES[trainer], sums_once=0, layer_by_layer=0, is_fsdp2=0)
    alone = replace(in_buckets, data_overlap=0.0, gather_exposed=0.0, gathers_beside=0)
    once, always = step(cases(configuration, sharded, model=MODELS[model], profile=alone)).exposed["dp"]
    assert always == pytest.approx(once * configuration.micro_batches)
    usual, summed = step(cases(configuration, sharded, model=MODELS[model], profile=in_buckets)).exposed["dp"]
    assert longer_or_equal(summed, usual)


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations(zero=3))
def test_slower_compute_never_exposes_more_of_zero_3(model: str, trainer: str, configuration: Configuration) -> None:
    """Longer compute hides more of concurrent messages."""
    legal(model, configuration)
    profile = PROFILES[trainer]
    quick, slow = (
        step(cases(configuration, model=MODELS[model], profile=replace(profile, work_scale=scale))).exposed["dp"][0]
        for scale in (1.0, 2.0)
    )
    assert longer_or_equal(quick, slow)


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations(zero=3))
def test_hybrid_sharding_still_sums_over_its_replicas(model: str, trainer: str, configuration: Configuration) -> None:
    """Replicas of a single device gather nothing; their gradients are summed over all of them as in ZeRO-0."""
    assume(configuration.dp > 1)
    hybrid = replace(configuration, replicas=configuration.dp * configuration.cp)
    legal(model, configuration, hybrid)
    assert steps(model, trainer, hybrid).exposed["dp"][0] > 0


@settings(max_examples=50)
@given(MODEL, configurations())
def test_more_sharding_never_needs_more_memory_except_for_gathers(model: str, configuration: Configuration) -> None:
    stages = [replace(configuration, zero=zero) for zero in (0, 1, 2, 3)]
    legal(model, *stages)
    parts = memory.fullest(memory.stage_parts(cases(*stages, model=MODELS[model])))
    needs = memory.total(parts) - parts["gathered_bytes"]
    assert (np.diff(needs) <= 1).all()


@settings(max_examples=50)
@given(TRAINER, configurations(cp=1, pp=1))
def test_context_parallelism_costs_more_than_data_parallelism(trainer: str, configuration: Configuration) -> None:
    """Half of the dp ranks become cp ranks that share each sequence; the batch stays."""
    assume(configuration.dp > 1)
    ring = replace(configuration, dp=configuration.dp // 2, cp=2, micro_batches=2 * configuration.micro_batches)
    legal("Llama-3-8B", configuration, ring)
    times = steps("Llama-3-8B", trainer, configuration, ring)
    assert longer_or_equal(times.seconds[1], times.seconds[0])


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations())
def test_tensor_parallelism_across_nodes_exposes_more_than_inside(
    model: str, trainer: str, configuration: Configuration
) -> None:
    assume(configuration.tp > 1)
    legal(model, configuration)
    inside, across = (
        steps(model, trainer, configuration, cluster=replace(MACHINE, devices_per_node=node)).exposed["tp"][0]
        for node in (configuration.tp, 1)
    )
    assert across > inside


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations(recompute=Recompute.NONE))
def test_recomputation_costs_time_and_saves_memory(model: str, trainer: str, configuration: Configuration) -> None:
    # A stalled send outweighs everything else, and full memory makes it likely.
    calm = replace(PROFILES[trainer], stall=0.0)
    kinds = [replace(configuration, recompute=kind) for kind in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)]
    legal(model, *kinds)
    c = cases(*kinds, model=MODELS[model], profile=calm)
    activations = memory.fullest(memory.stage_parts(c))["activation_bytes"]
    seconds = step(c).seconds
    # A longer backward hides more of the gradients, which may outweigh the little that selective recomputation costs.
    assert (seconds[1:] >= seconds[:-1] * 0.995).all()
    assert longer_or_equal(activations[0], activations[1])


@settings(max_examples=50)
@given(TRAINER, st.sampled_from([1, 2, 16]), st.sampled_from([1, 4]), st.booleans())
def test_twice_the_rows_are_never_faster_with_many_narrow_experts(
    trainer: str, tp: int, cp: int, sequence_parallel: bool
) -> None:
    """Padding to full tiles used to be counted again for each wave, so few rows per expert took longer."""
    configuration = Configuration(tp=tp, cp=cp, micro_batches=4, sequence_parallel=sequence_parallel)
    c = cases(configuration, replace(configuration, micro_batch=2), model=NARROW, profile=PROFILES[trainer])
    seconds = step(c).seconds
    assert longer_or_equal(seconds[1], seconds[0])


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations())
def test_unfused_attention_is_never_faster_or_smaller(model: str, trainer: str, configuration: Configuration) -> None:
    legal(model, configuration)
    unfused = replace(configuration, fused_attention=False)
    calm = replace(PROFILES[trainer], stall=0.0)
    c = cases(configuration, unfused, model=MODELS[model], profile=calm)
    compute = step(c).compute
    assert longer_or_equal(compute[1], compute[0])
    activations = memory.fullest(memory.stage_parts(c))["activation_bytes"]
    assert longer_or_equal(activations[1], activations[0])


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations())
def test_every_part_is_finite_and_none_is_negative(model: str, trainer: str, configuration: Configuration) -> None:
    legal(model, configuration)
    times = steps(model, trainer, configuration)
    parts = [times.compute, times.bubble, times.optimizer, times.fixed, *times.exposed.values()]
    assert all(np.isfinite(part).all() and (part >= 0).all() for part in parts)
    assert sum(float(part[0]) for part in parts) == pytest.approx(float(times.seconds[0]))


def test_every_part_of_a_step_is_checked() -> None:
    checked = {"seconds", "compute", "exposed", "bubble", "optimizer", "fixed", "stall_chance", "stall"}
    assert {field.name for field in fields(Step)} == checked


@settings(max_examples=50)
@given(TRAINER, configurations(zero=1))
def test_shards_of_one_device_send_as_much_as_whole_replicas(trainer: str, configuration: Configuration) -> None:
    """Nothing is sharded if every rank is a replica; experts' gradients are also summed as in ZeRO-0."""
    assume(configuration.dp * configuration.cp > 1)
    configuration = replace(configuration, etp=configuration.tp)
    replicated = replace(configuration, replicas=configuration.dp * configuration.cp)
    unsharded = replace(configuration, zero=0)
    legal("experts", replicated, unsharded)
    exposed = steps("experts", trainer, replicated, unsharded).exposed["dp"]
    assert exposed[0] == pytest.approx(exposed[1])


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations())
def test_smaller_nodes_are_never_faster(model: str, trainer: str, configuration: Configuration) -> None:
    legal(model, configuration)
    nodes = [replace(MACHINE, devices_per_node=node) for node in (8, 4, 2, 1)]
    seconds = [steps(model, trainer, configuration, cluster=node).seconds[0] for node in nodes]
    # Slower tp messages make backward longer, which hides slightly more of the gradients.
    assert all(longer_or_equal(after, before * 0.999) for before, after in pairwise(seconds))


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations())
def test_more_ranks_of_dp_never_need_more_memory(model: str, trainer: str, configuration: Configuration) -> None:
    more = replace(configuration, dp=2 * configuration.dp)
    legal(model, configuration, more)
    c = cases(configuration, more, model=MODELS[model], profile=PROFILES[trainer])
    before, after = memory.total(memory.fullest(memory.stage_parts(c)))
    assert longer_or_equal(before, after)


@settings(max_examples=50)
@given(TRAINER, configurations())
def test_one_expert_for_every_token_needs_the_memory_of_a_dense_block_and_copies(
    trainer: str, configuration: Configuration
) -> None:
    """Weights, gradients and optimizer state equal those of the dense block, except for one row of the router."""
    single_expert = replace(EXPERTS, experts=1, experts_per_token=1)
    dense = replace(EXPERTS, experts=0, experts_per_token=0, expert_ffn_hidden=0)
    configuration = replace(configuration, etp=configuration.tp)
    assume(not broken_rule(single_expert, configuration) and not broken_rule(dense, configuration))
    profile = PROFILES[trainer]
    mixed, plain = (
        memory.fullest(memory.stage_parts(cases(configuration, model=model, profile=profile)))
        for model in (single_expert, dense)
    )
    for part in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
        assert mixed[part][0] == pytest.approx(plain[part][0], rel=2e-3)


@settings(max_examples=50)
@given(MODEL, TRAINER, configurations())
def test_an_axis_of_one_rank_sends_nothing(model: str, trainer: str, configuration: Configuration) -> None:
    legal(model, configuration)
    times = steps(model, trainer, configuration)
    alone = {
        "tp": configuration.tp,
        "cp": configuration.cp,
        "ep": configuration.ep,
        "dp": configuration.dp * configuration.cp,
    }
    assert all(times.exposed[axis][0] == 0 for axis, ranks in alone.items() if ranks == 1)
    assert configuration.pp > 1 or times.bubble[0] == 0


def test_faster_compute_does_not_lengthen_a_step_that_waits_for_two_axes() -> None:
    """Compute used to hide the ring and the gradients, so that a step lost twice what faster compute saved."""
    waits = Configuration(dp=16, tp=8, cp=2, zero=0, micro_batches=1)
    long = replace(LLAMA_8B, sequence=131072)
    slow, quick = (
        step(cases(waits, model=long, cluster=replace(MACHINE, network_rate=2e8, core_efficiency=share)))
        for share in (0.25, 0.5)
    )
    assert all(axis in quick.exposed and quick.exposed[axis][0] > slow.exposed[axis][0] for axis in ("cp", "dp"))
    assert longer_or_equal(slow.seconds[0], quick.seconds[0])


def test_pytorch_pipelines_do_not_reduce_while_they_fill() -> None:
    """Each rank reduces after its last backward. The reduction used to delay the filling of every rank."""
    pipeline = Configuration(dp=64, pp=8, zero=2, micro_batches=8)
    torchtitan = PROFILES["torchtitan"]
    short, long = (
        step(cases(pipeline, model=LLAMA_8B, profile=replace(torchtitan, sent_gradient_bytes=size))) for size in (4, 40)
    )
    assert long.exposed["dp"][0] > short.exposed["dp"][0]
    assert long.bubble[0] == pytest.approx(short.bubble[0])
