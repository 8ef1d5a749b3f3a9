"""Bytes of a rank: those of the formulas in the papers."""

from dataclasses import replace

import pytest

from usp_prof.contract import ModelEntry
from usp_prof.model.configuration import Configuration, Recompute, columns_of
from usp_prof.model.footprint import Stage, footprint, layer_activations
from usp_prof.model.known_models import model_named
from usp_prof.model.shape import shape_of

MODEL = ModelEntry(
    layers=4, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn_hidden=4096, vocab=1000, sequence=512, gated_ffn=False
)
ALL = Stage(4.0, embedding=True, head=True, in_flight=1.0)
WEIGHTS = 4 * (4 * 1024**2 + 2 * 1024 * 4096 + 2 * 1024) + 2 * 1000 * 1024


def test_mixed_precision_needs_sixteen_bytes_per_parameter() -> None:
    memory = footprint(MODEL, Configuration(), ALL)
    assert memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes == 16 * WEIGHTS


@pytest.mark.parametrize(("zero", "bytes_each"), [(0, 16), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 2)])
def test_each_zero_stage_shards_one_more_state(zero: int, bytes_each: float) -> None:
    memory = footprint(MODEL, Configuration(dp=4, cp=2, zero=zero), ALL)
    assert memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes == pytest.approx(
        bytes_each * WEIGHTS
    )
    assert bool(memory.gathered_bytes) == (zero == 3)


def test_a_plain_layer_stores_32_bytes_per_token_and_unit() -> None:
    """Korthikanti's 34 without the two dropout masks of one byte, which are no longer used in training."""
    layers_by_unit = 4 * 512 * 1024

    def bytes_per_value(configuration: Configuration) -> float:
        return footprint(MODEL, configuration, ALL).activation_bytes / layers_by_unit

    assert bytes_per_value(Configuration()) == 32
    assert bytes_per_value(Configuration(tp=4, cp=2)) == 32 / 8
    assert bytes_per_value(Configuration(recompute=Recompute.SELECTIVE)) == 30


def test_latent_attention_stores_latents_and_their_projections() -> None:
    """DeepSeek-V3's attention, by hand: 128 heads of 192 (queries, keys) and 128 (values), latents of 1536 and 512."""
    model = model_named("DeepSeek-V3", 4096)
    query, key_value, output, latents = 128 * 192, 128 * (192 + 128), 128 * 128, 1536 + 512
    shape = shape_of(model)
    assert (shape.query, shape.key_value, shape.core_out, shape.latent) == (query, key_value, output, latents)
    wider = replace(shape, latent=0.0)
    plain, latent = (
        float(layer_activations(layer_shape, columns_of([Configuration(tp=8, sequence_parallel=False)]))[0])
        for layer_shape in (wider, shape)
    )
    # Before and after their norms, two bytes each, on every tp rank.
    assert latent - plain == 4096 * 4 * latents


def test_full_recomputation_stores_one_layer_at_a_time() -> None:
    memory = footprint(MODEL, Configuration(recompute=Recompute.FULL), ALL)
    assert memory.activation_bytes == (4 * 2 + 32) * 512 * 1024


def test_tied_matrices_on_one_rank_count_once() -> None:
    tied = ModelEntry(layers=1, hidden=64, heads=1, vocab=1000, sequence=8, ffn_hidden=64, tied_embeddings=True)
    both = footprint(tied, Configuration(), Stage(1.0, embedding=True, head=True, in_flight=1))
    first = footprint(tied, Configuration(), Stage(1.0, embedding=True, head=False, in_flight=1))
    assert both.parameter_bytes == first.parameter_bytes
    assert first.logit_bytes == 0


def test_experts_are_divided_over_their_axis() -> None:
    sparse = ModelEntry(
        layers=2, hidden=64, heads=1, vocab=10, sequence=8, ffn_hidden=64, experts=4, experts_per_token=2
    )
    middle = Stage(2.0, embedding=False, head=False, in_flight=1)
    parameter_bytes = footprint(sparse, Configuration(dp=4), middle).parameter_bytes
    halved = footprint(sparse, Configuration(dp=4, ep=2), middle).parameter_bytes
    assert parameter_bytes - halved == 2 * 2 * 2 * 3 * 64 * 64  # two of four experts, two layers, two bytes
