"""Modules of selective recomputation, and layers whose activations wait in host memory."""

from dataclasses import replace

import numpy as np
import pytest
from planned import EXPERTS, LLAMA_8B

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner import functions
from usp_prof.extras.planner.cluster import cluster_of
from usp_prof.extras.planner.launch import command, refusal
from usp_prof.extras.planner.model_rules import broken_rule, modules_named
from usp_prof.extras.planner.predict import Prediction, predict
from usp_prof.extras.planner.table import predict_table, understood
from usp_prof.model.configuration import MODULES, Configuration, Recompute
from usp_prof.model.errors import UsageError
from usp_prof.model.known_models import model_named
from usp_prof.model.shape import shape_of

DEEPSEEK = model_named("DeepSeek-V3", 4096)
NONE = Configuration(dp=8, tp=2, ep=4, zero=1, micro_batches=4)
SELECTIVE = replace(NONE, recompute=Recompute.SELECTIVE)
H100 = cluster_of("H100")


def of_modules(model: ModelEntry, *modules: str) -> Prediction:
    return predict(model, replace(SELECTIVE, recompute_modules=modules), H100)


@pytest.mark.parametrize("model", [DEEPSEEK, EXPERTS, replace(LLAMA_8B, experts=0)], ids=lambda model: model.name)
@pytest.mark.parametrize("module", MODULES)
def test_recomputing_a_module_never_adds_memory_or_saves_time(model: ModelEntry, module: str) -> None:
    layout = replace(NONE, ep=4 if model.experts else 1)
    stored = predict(model, layout, H100)
    repeated = predict(model, replace(layout, recompute=Recompute.SELECTIVE, recompute_modules=(module,)), H100)
    assert repeated.footprint.activation_bytes <= stored.footprint.activation_bytes
    assert repeated.step_ns >= stored.step_ns


def test_the_default_module_is_core_attention() -> None:
    assert of_modules(DEEPSEEK).step_ns == of_modules(DEEPSEEK, "core_attn").step_ns
    assert of_modules(DEEPSEEK).footprint == of_modules(DEEPSEEK, "core_attn").footprint


def test_latents_replace_queries_keys_and_values() -> None:
    shape = shape_of(DEEPSEEK)
    stored = predict(DEEPSEEK, NONE, H100).footprint.activation_bytes
    freed = stored - of_modules(DEEPSEEK, "mla_up_proj").footprint.activation_bytes
    expected = 61 * 4096 * 2 * (float(np.asarray(shape.query)) + float(np.asarray(shape.key_value))) / 2
    assert freed == pytest.approx(expected, rel=1e-3)


def test_recomputing_the_whole_mixture_frees_more_than_its_activation() -> None:
    of_act, of_moe = (of_modules(EXPERTS, name).footprint.activation_bytes for name in ("moe_act", "moe"))
    assert of_moe < of_act < predict(EXPERTS, NONE, H100).footprint.activation_bytes


def test_tables_name_modules_in_a_column_or_after_the_word() -> None:
    row = {"model": "DeepSeek-V3", "sequence": "4096", "device": "H100", "dp": "64", "ep": "64"}
    of_column = understood({**row, "recompute_modules": "mlp,mla_up_proj"}).configuration
    of_word = understood({**row, "recompute": "selective mla_up_proj mlp"})
    assert of_column.recompute is Recompute.SELECTIVE
    assert of_column.recompute_modules == of_word.configuration.recompute_modules == ("mla_up_proj", "mlp")
    refused = predict_table(
        [{**row, "recompute_modules": "attention"}, {**row, "recompute_modules": "mlp", "recompute": "full"}]
    )
    assert "no module is named 'attention'" in str(refused[0])
    assert "needs selective recomputation" in str(refused[1])


def test_modules_are_sorted_and_unknown_ones_refused() -> None:
    assert modules_named("moe_act core_attn") == modules_named(["core_attn", "moe_act"]) == ("core_attn", "moe_act")
    with pytest.raises(UsageError, match="no module is named"):
        modules_named("core")


def test_a_search_with_fixed_modules_recomputes_them() -> None:
    planned = functions.plan(
        model="DeepSeek-V3", sequence=4096, device="GB200", devices=256, batch=2048, pp=4, ep=64, tp=1, cp=1, zero=1,
        recompute_modules="mla_up_proj moe_act",
    )  # fmt: skip
    assert {plan.configuration.recompute_modules for plan in planned.plans.best} == {("mla_up_proj", "moe_act")}
    assert "mla_up_proj" in str(planned.plans.best[0].configuration)


def test_only_megatron_has_modules_and_offloaded_layers() -> None:
    modules = replace(SELECTIVE, ep=1, recompute_modules=("core_attn", "layernorm"))
    assert "--recompute-granularity selective --recompute-modules core_attn layernorm" in command(
        "megatron", LLAMA_8B, modules
    )
    offloaded = replace(NONE, ep=1, offload_layers=12)
    assert "--cpu-offloading-num-layers 12" in command("megatron", LLAMA_8B, offloaded)
    assert "without a pipeline" in refusal("megatron", LLAMA_8B, replace(offloaded, pp=2))
    own = replace(LLAMA_8B, name="Llama-3-8B", vocab=128256)
    for trainer, layout in (("usp-prof", modules), ("nanotron", offloaded), ("torchtitan", replace(modules, zero=3))):
        assert refusal(trainer, own, layout)


def test_offloaded_layers_trade_device_memory_for_host_memory_and_time() -> None:
    layout = replace(NONE, ep=1)
    stored = predict(LLAMA_8B, layout, H100)
    steps = [predict(LLAMA_8B, replace(layout, offload_layers=number), H100) for number in (8, 16, 31)]
    needs = [step.footprint.activation_bytes for step in (stored, *steps)]
    assert needs == sorted(needs, reverse=True)
    assert len(set(needs)) == len(needs)
    assert [step.step_ns for step in steps] == sorted(step.step_ns for step in steps)
    assert steps[0].step_ns >= stored.step_ns
    assert steps[1].host_bytes == pytest.approx(2 * steps[0].host_bytes)
    assert "no layer on the device" in broken_rule(LLAMA_8B, replace(layout, offload_layers=32))
    assert "recomputed or offloaded" in broken_rule(
        LLAMA_8B, replace(layout, offload_layers=2, recompute=Recompute.FULL)
    )
