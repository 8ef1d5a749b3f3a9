"""Impossible configurations: refused, with the rule named."""

from dataclasses import replace

import pytest

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.model_rules import broken_rule
from usp_prof.model.configuration import Configuration, Recompute

MODEL = ModelEntry(layers=8, hidden=512, heads=8, kv_heads=2, ffn_hidden=2048, vocab=1000, sequence=512)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tp": 3}, "tp=3 does not divide the 8 attention heads"),
        ({"cp": 3}, "cp=3 needs a sequence that 2 x cp divides"),
        ({"pp": 16}, "16 x 1 stages are more than the 8 layers"),
        ({"ep": 2, "dp": 2}, "ep=2 needs a model with experts"),
        ({"zero": 4}, "ZeRO has stages 0 to 3"),
        ({"dp": 0}, "every degree and count is at least 1"),
        ({"pp": 2, "chunks": 2, "schedule": "interleaved", "micro_batches": 3}, "interleaved needs micro-batches"),
    ],
)
def test_a_broken_rule_is_named(change: dict[str, int], sentence: str) -> None:
    assert sentence in broken_rule(MODEL, replace(Configuration(), **change))


def test_heads_and_tensor_ranks_must_be_divisible() -> None:
    few = replace(MODEL, heads=12, kv_heads=3)
    assert "3 key/value heads" in broken_rule(few, Configuration(tp=2))
    assert not broken_rule(replace(few, sequence=768), Configuration(tp=6))


def test_experts_are_distributed_over_data_parallel_ranks() -> None:
    sparse = replace(MODEL, experts=6)
    assert "divides neither dp x cp = 4 nor" in broken_rule(sparse, Configuration(dp=4, ep=3))
    assert "does not divide the 6 experts" in broken_rule(sparse, Configuration(dp=4, ep=4))
    assert not broken_rule(sparse, Configuration(dp=4, ep=2))


def test_only_settings_other_than_defaults_are_written() -> None:
    configuration = Configuration(dp=4, tp=2, pp=2, zero=1, micro_batches=8, recompute=Recompute.FULL)
    assert str(configuration) == "dp4 tp2 pp2, 8x1, ZeRO-1, 1f1b, recompute full"
    assert str(Configuration()) == "1 device, 1x1"
    assert (configuration.devices, configuration.batch) == (16, 32)
