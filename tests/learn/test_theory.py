"""Theory of lessons: figures that can be computed by hand."""

from __future__ import annotations

import pytest

from usp_prof.contract import Manifest, ModelEntry
from usp_prof.extras.learn.theory import (
    data_parallel_step,
    exposed_gradients,
    gradient_messages,
    layers_of_a_rank,
    model_states,
    recomputed_step,
    ring_imbalance,
    sent_activations,
    sent_context,
    sent_gradients,
    textbook_bubble,
)

MS = 1e6
UNOVERLAPPED = {"kind": "unoverlapped"}


def manifest(*faults: dict[str, object], pace: str = "10,10,10", **fields: object) -> Manifest:
    """Declare a run with two layers and a million parameters on four data-parallel ranks with links of 48 Mbit/s.

    Its gradients are 4 MB. Each rank sends 2 * 3/4 of them, 6 MB, which take a second.
    """
    given = {"mesh": {"dp": 4}, "faults": [{"kind": "slow_link", "mbps": 48.0}, *faults], **fields}
    return Manifest(model=ModelEntry(name="", layers=2, parameters=1_000_000), options={"pace": pace}, **given)


def test_gradients_reduced_after_backward_are_fully_exposed() -> None:
    assert exposed_gradients(manifest(UNOVERLAPPED), {}) == pytest.approx(1000 * MS)
    assert data_parallel_step(manifest(UNOVERLAPPED), {}) == pytest.approx(1060 * MS)


def test_slow_links_hide_the_backward_time_after_the_first_bucket() -> None:
    """Backward takes 40 ms. The first of four buckets is ready after 10 ms, and the link is busy from then on."""
    assert exposed_gradients(manifest(), {}) == pytest.approx((10 + 1000 - 40) * MS)


def test_fast_links_expose_only_the_last_bucket() -> None:
    slow_compute = manifest(pace="1000,1000,1000")
    assert exposed_gradients(slow_compute, {}) == pytest.approx(250 * MS)


@pytest.mark.parametrize(("stage", "bytes_of_parameter", "sent"), [(0, 16, 6), (1, 10, 6), (2, 7, 6), (3, 4, 9)])
def test_zero_divides_states_and_stage_3_sends_half_more(stage: int, bytes_of_parameter: int, sent: int) -> None:
    run = manifest(zero_stage=stage)
    assert model_states(run, {}) == bytes_of_parameter * 1_000_000
    assert sent_gradients(run, {}) == pytest.approx(sent * 1e6)


def test_stage_3_gathers_the_embedding_and_the_head_once() -> None:
    run = manifest(zero_stage=3)
    run.model.embedding_parameters = 100_000
    assert sent_gradients(run, {}) == pytest.approx(3 / 4 * 4 * (3 - 0.2) * 1e6)


def test_every_accumulated_pass_is_computed() -> None:
    assert data_parallel_step(manifest(UNOVERLAPPED, gradient_accumulation=4), {}) == pytest.approx(1240 * MS)


def test_without_buckets_each_gradient_is_a_message() -> None:
    assert gradient_messages(manifest({"kind": "unbucketed"}), {}) == 21


def test_full_recomputation_runs_forward_again() -> None:
    assert recomputed_step(manifest(recompute="full"), {}) == pytest.approx(80 * MS)
    assert recomputed_step(manifest(recompute="selective"), {}) == pytest.approx(60 * MS)


def test_the_last_of_four_contiguous_ranks_has_seven_quarters_of_the_mean_work() -> None:
    run = manifest(pace="0,0,0,10", mesh={"cp": 4})
    assert ring_imbalance(run, {}) == 1
    run.options["cp_layout"] = "contiguous"
    assert ring_imbalance(run, {}) == pytest.approx(7 / 4)


def test_the_textbook_bubble_is_that_of_the_schedule() -> None:
    stages = {str(rank): [rank] for rank in range(4)}
    run = manifest(mesh={"pp": 4}, schedule="1f1b", micro_batches=8, stages=stages)
    assert textbook_bubble(run, {}) == pytest.approx(3 / 11)


def test_mixed_precision_keeps_more_states_than_fp32_and_tp_and_pp_divide_them() -> None:
    assert model_states(manifest(dtype="bf16"), {}) == 18 * 1_000_000
    assert model_states(manifest(dtype="bf16", zero_stage=1), {}) == (2 + 4 + 12 / 4) * 1_000_000
    assert model_states(manifest(mesh={"tp": 2, "pp": 2}), {}) == 4 * 1_000_000


@pytest.mark.parametrize(
    ("options", "dtype", "sent"),
    [
        ({"sequence_parallel": False}, "fp32", 20 * 3 / 4 * 4 * 800),
        ({"tp_async": True}, "bf16", 20 * 3 / 4 * 2 * 800),
        ({}, "bf16", 24 * 3 / 4 * 2 * 800),
    ],
)
def test_tensor_parallel_ranks_send_the_activations_eight_or_ten_times(
    options: dict[str, bool], dtype: str, sent: float
) -> None:
    """Two layers, 100 tokens of 8 numbers; embedding and head are two blocks more."""
    run = manifest(mesh={"tp": 4}, dtype=dtype, micro_batch_tokens=100)
    run.options |= options
    run.model = ModelEntry(name="", layers=2, hidden=8, parameters=1_000_000)
    assert sent_activations(run, {}) == pytest.approx(sent)


@pytest.mark.parametrize(("method", "tokens_sent"), [("ring", 10 * 2 * 100), ("allgather", 2 * 3 * 2 * 100)])
def test_context_ranks_send_keys_and_values(method: str, tokens_sent: float) -> None:
    """Four ranks of 100 tokens each, one layer, 4 heads of 2 numbers: 32 bytes of keys a token."""
    run = manifest(mesh={"cp": 4}, micro_batch_tokens=400)
    run.model = ModelEntry(name="", layers=1, heads=4, kv_heads=4, head_dim=2, parameters=1_000_000)
    run.options["cp_method"] = method
    assert sent_context(run, {}) == pytest.approx(tokens_sent * 32 + 6e6)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "kv_heads_sent"), [(4, 4, 4), (4, 2, 4), (8, 8, 8), (8, 2, 4), (12, 6, 12)]
)
def test_ulysses_sends_heads_and_repeats_keys_if_they_are_too_few(
    heads: int, kv_heads: int, kv_heads_sent: int
) -> None:
    run = manifest(mesh={"cp": 4}, micro_batch_tokens=400)
    run.model = ModelEntry(name="", layers=1, heads=heads, kv_heads=kv_heads, head_dim=2, parameters=1_000_000)
    run.options["cp_method"] = "ulysses"
    sent = 2 * 2 * (heads + kv_heads_sent) * 3 / 4 * 100 * 8  # in both directions, forward and backward
    assert sent_context(run, {}) == pytest.approx(sent + 6e6)


def test_a_pipeline_rank_computes_its_layers_for_each_micro_batch() -> None:
    assert layers_of_a_rank(manifest(), {}) == pytest.approx(60 * MS)
    assert layers_of_a_rank(manifest(mesh={"pp": 2}, micro_batches=4), {}) == pytest.approx(120 * MS)
