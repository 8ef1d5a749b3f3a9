"""Launch commands of plans: accepted by the trainer, or refused if it cannot run them."""

import shlex
from dataclasses import fields, replace
from math import ceil
from typing import Any

import pytest
from planned import EXPERTS, LLAMA_8B, MACHINE

from usp_prof.contract import BlockEntry, LayerEntry, ModelEntry
from usp_prof.extras.planner.cluster import cluster_of
from usp_prof.extras.planner.launch import command, refusal, refusal_of_layout
from usp_prof.extras.planner.launch_usp_prof import PRESETS
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import search
from usp_prof.model.configuration import Configuration, Offload, Recompute
from usp_prof.model.errors import UsageError
from usp_prof.model.known_models import model_named
from usp_prof.whatif.layout import layers_of_stages

TINY = ModelEntry(layers=8, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn_hidden=128, vocab=256, sequence=64)
EACH = Configuration(dp=4, tp=2, pp=2, zero=1, micro_batches=8, schedule="interleaved", chunks=2)


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(dp=4, pp=2, micro_batches=8),
        Configuration(dp=2, pp=4, micro_batches=8, schedule="interleaved", chunks=2, micro_batch=2),
        Configuration(dp=4, tp=2, zero=3, micro_batches=4, replicas=2, recompute=Recompute.FULL),
        Configuration(dp=8, ep=2, micro_batches=2),
        Configuration(dp=4, tp=2, micro_batches=2, sequence_parallel=False),
        Configuration(dp=2, zero=1, micro_batches=2, offload=Offload.OPTIMIZER),
    ],
)
def test_our_trainer_resolves_to_the_planned_configuration(configuration: Configuration) -> None:
    command_line = pytest.importorskip("trainer.configuration.command_line")
    rules = pytest.importorskip("trainer.rules")
    model = replace(TINY, experts=4, experts_per_token=2, expert_ffn_hidden=128) if configuration.ep > 1 else TINY
    words = shlex.split(command("usp-prof", model, replace(configuration, dtype="fp32")))
    settled = rules.resolve(command_line.parse(words[words.index("trainer/run.py") + 1 :]), configuration.devices)
    assert settled.micro_batch == configuration.micro_batch
    assert settled.options.batch == configuration.batch
    assert settled.options.sequence_parallel == configuration.sequence_parallel
    assert settled.options.offload == configuration.offload
    assert (settled.shape.hidden, settled.shape.layers, settled.shape.sequence) == (64, 8, 64)


@pytest.mark.parametrize("experts", [0, 4])
def test_our_trainer_accepts_the_commands_of_plans(experts: int) -> None:
    command_line = pytest.importorskip("trainer.configuration.command_line")
    rules = pytest.importorskip("trainer.rules")
    model = replace(TINY, experts=experts, experts_per_token=min(experts, 2), expert_ffn_hidden=128 if experts else 0)
    plans = search(Question(model, MACHINE, devices=8, batch=32, dtype="fp32", trainer="usp-prof")).best
    assert len(plans) > 100
    for plan in plans[::7]:
        words = shlex.split(command("usp-prof", model, plan.configuration))
        options = command_line.parse(words[words.index("trainer/run.py") + 1 :])
        assert rules.resolve(options, plan.configuration.devices).micro_batch == plan.configuration.micro_batch


def test_the_models_of_our_trainer_exist() -> None:
    shape = pytest.importorskip("trainer.configuration.shape")
    sizes = {name: (s.hidden, s.heads, s.kv_heads, s.ffn, s.vocab) for name, s in shape.PRESETS.items()}
    assert sizes == PRESETS


def test_torchtitan_gets_the_planned_options() -> None:
    configuration = replace(EACH, zero=3, recompute=Recompute.SELECTIVE)
    text = command("torchtitan", model_named("Llama-3-8B", 8192), configuration)
    assert "--module llama3 --config llama3_8b" in text
    assert "--parallelism.data_parallel_shard_degree 4" in text
    assert "--parallelism.pipeline_parallel_schedule Interleaved1F1B" in text
    assert "pipeline_parallel_layers_per_stage" not in text  # two stages per rank are its default
    assert "--training.local_batch_size 8 --training.global_batch_size 32" in text


def test_torchtitan_has_the_planned_number_of_stages_or_no_command() -> None:
    """It derives the number from layers per stage; 3 layers for 16 stages used to give it 12 stages."""
    model = model_named("Llama-3-8B", 8192)
    deep = Configuration(pp=4, zero=2, micro_batches=8, schedule="interleaved", chunks=3, recompute=Recompute.SELECTIVE)
    text = command("torchtitan", model, deep)
    per_stage = int(text.partition("layers_per_stage ")[2].split()[0])
    assert ceil((model.layers + 2) / per_stage) == 12
    assert "no option gives 16 stages" in refusal("torchtitan", model, replace(deep, chunks=4))


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"tp": 16}, "8 key/value heads"), ({"tp": 8, "cp": 2}, "in multiples of 32 tokens")],
)
def test_degrees_that_torchtitan_rejects_are_refused(change: dict[str, int], reason: str) -> None:
    model = replace(model_named("Llama-3-8B", 8192), sequence=8208)
    assert reason in refusal("torchtitan", model, Configuration(zero=2, recompute=Recompute.SELECTIVE, **change))


def test_the_405b_model_of_torchtitan_is_in_float8() -> None:
    """Its configuration converts products to float8, but the command was predicted in bf16."""
    model, plan = model_named("Llama-3-405B", 8192), Configuration(dp=64, tp=8, zero=3, recompute=Recompute.FULL)
    assert "configured for fp8 only" in refusal("torchtitan", model, plan)
    assert "--config llama3_405b" in command("torchtitan", model, replace(plan, dtype="fp8"))


def test_torchtitan_captures_no_graphs_of_pipelines_and_experts() -> None:
    """It checks that before it starts."""
    model = model_named("Llama-3-8B", 8192)
    plain = Configuration(dp=8, zero=2, recompute=Recompute.SELECTIVE)
    assert "disable_cuda_graphs" not in command("torchtitan", model, plain)
    assert "--training.disable_cuda_graphs" in command("torchtitan", model, replace(plain, dp=4, pp=2, micro_batches=4))


def test_megatron_gets_the_planned_options() -> None:
    text = command("megatron", EXPERTS, replace(EACH, recompute=Recompute.FULL))
    assert "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2" in text
    assert "--sequence-parallel" in text
    assert "--use-distributed-optimizer" in text
    assert "--expert-model-parallel-size 1 --expert-tensor-parallel-size 2" in text
    assert "--num-virtual-stages-per-pipeline-rank 2" in text
    assert "--num-layers 8 --hidden-size 1024" in text


def test_embedding_and_head_count_as_layers_if_only_then_stages_are_even() -> None:
    """As Llama-3-405B is trained: 126 layers, embedding and head on 64 stages of two."""
    model = model_named("Llama-3-405B", 8192)
    configuration = Configuration(tp=8, cp=2, pp=8, chunks=8, schedule="interleaved", micro_batches=64, zero=1)
    words = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    assert words in command("megatron", model, configuration)
    assert words not in command("megatron", model, replace(configuration, chunks=9, pp=7, micro_batches=63))


def test_uneven_stages_reach_megatron_as_a_layout() -> None:
    """Megatron used to count as unable to run them, and the planner listed fewer plans than run."""
    uneven = Configuration(pp=3, micro_batches=6, schedule="interleaved", chunks=2)
    text = command("megatron", LLAMA_8B, uneven)
    layers = [stage.count("t") for stage in text.partition("layout 'E")[2].partition("L'")[0].split("|")]
    assert layers == list(layers_of_stages(LLAMA_8B.layers, 6))
    assert "--num-virtual-stages" not in text
    assert "--account-for-embedding" not in text


def test_layers_with_experts_reach_megatron() -> None:
    attention = BlockEntry(kind="attention", form="full", heads=8, kv_heads=8)
    dense = BlockEntry(kind="feed_forward", form="dense", ffn_hidden=2048)
    mixture = BlockEntry(kind="feed_forward", form="mixture", experts=8)
    kinds = [LayerEntry([attention, dense]), LayerEntry([attention, mixture])]
    some = replace(EXPERTS, layers=8, moe_layers=5, layer_kinds=kinds, layer_order=[0, 0, 0, 1, 1, 1, 1, 1])
    assert "--moe-layer-freq '[0]*3+[1]*5'" in command("megatron", some, Configuration(dp=8))
    assert "--moe-layer-freq '2'" in command("megatron", model_named("Llama-4-Maverick", 8192), Configuration(dp=8))
    assert "experts is unknown" in refusal("megatron", replace(EXPERTS, moe_layers=5), Configuration(dp=8))
    assert "have no fp16" in refusal("megatron", EXPERTS, Configuration(dp=8, dtype="fp16"))


def test_megatron_overlaps_gradients_as_predicted() -> None:
    assert "--overlap-grad-reduce" in command("megatron", LLAMA_8B, Configuration(dp=8))
    assert "--overlap-grad-reduce" not in command("megatron", LLAMA_8B, Configuration(tp=8))


def test_torchtitan_gets_the_degree_of_experts() -> None:
    model = model_named("Qwen3-30B-A3B", 4096)
    configuration = Configuration(dp=8, ep=8, zero=2, recompute=Recompute.FULL)
    text = command("torchtitan", model, configuration)
    assert "--module qwen3 --config qwen3_30b_a3b" in text
    assert "--parallelism.expert_parallel_degree 8" in text
    assert "divide experts by tp" in refusal("torchtitan", model, replace(configuration, tp=2, etp=2))
    assert not refusal("torchtitan", model, replace(configuration, tp=2))


def test_megatrons_zero_3_is_its_own_fsdp_without_a_pipeline() -> None:
    text = command("megatron", LLAMA_8B, Configuration(dp=8, zero=3))
    assert "--use-megatron-fsdp --use-distributed-optimizer" in text
    assert "--data-parallel-sharding-strategy optim_grads_params" in text
    assert text.startswith("CUDA_DEVICE_MAX_CONNECTIONS=8")
    with pytest.raises(UsageError, match="with a pipeline"):
        command("megatron", LLAMA_8B, Configuration(dp=4, pp=2, zero=3, micro_batches=2))


PARTLY = Configuration(dp=8, recompute=Recompute.SELECTIVE)


@pytest.mark.parametrize(
    ("trainer", "configuration", "reason"),
    [
        ("megatron", Configuration(pp=2, micro_batches=4, schedule="zbv"), "no schedule zbv"),
        ("megatron", Configuration(dp=8, loss_chunks=2), "loss in 2 chunks"),
        ("megatron", replace(PARTLY, recompute_modules=("mla_up_proj",)), "multi-latent attention"),
        ("megatron", replace(PARTLY, recompute_modules=("moe_act",)), "needs experts"),
        ("torchtitan", Configuration(dp=8, loss_chunks=16, recompute=Recompute.SELECTIVE), "loss in 16 chunks"),
        ("megatron", Configuration(dp=16, zero=3, replicas=2), "hybrid sharding"),
        ("torchtitan", Configuration(dp=8, zero=1, recompute=Recompute.SELECTIVE), "ZeRO-2"),
        ("torchtitan", Configuration(dp=8, zero=3), "always uses selective recomputation"),
        ("torchtitan", Configuration(dp=8, zero=3, dtype="fp8"), "configured for bf16 only"),
        ("torchtitan", Configuration(pp=2, micro_batches=4, schedule="zb-h1", recompute=Recompute.SELECTIVE), "zb-h1"),
        ("usp-prof", Configuration(dtype="fp16"), "no fp16"),
    ],
)
def test_configurations_that_a_trainer_cannot_run_are_refused(
    trainer: str, configuration: Configuration, reason: str
) -> None:
    model = model_named("Llama-3-8B", 8192)
    with pytest.raises(UsageError, match=f"^{trainer} cannot run .*{reason}"):
        command(trainer, model, configuration)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pp": 2, "micro_batches": 4, "schedule": "zb-h1"}, "no schedule zb-h1"),
        ({"tp": 8}, "does not divide 4 key/value heads"),
        ({"cp": 4, "dp": 2, "tp": 4}, "in multiples of 32 tokens"),
        ({"dp": 1, "zero": 1}, "nothing to shard"),
        ({"dp": 4, "replicas": 2}, "replicas are for ZeRO"),
    ],
)
def test_options_that_our_trainer_rejects_are_refused(change: dict[str, Any], reason: str) -> None:
    """Plans for it used to be listed, with commands that it rejects."""
    model = replace(TINY, heads=8, sequence=48)
    assert reason in refusal_of_layout("usp-prof", model, replace(Configuration(dp=8, dtype="fp32"), **change))


def test_a_model_that_is_not_a_preset_of_our_trainer_is_refused() -> None:
    with pytest.raises(UsageError, match="not one of its presets"):
        command("usp-prof", EXPERTS, Configuration())
    of_tiny = replace(TINY, experts=4, experts_per_token=2, expert_ffn_hidden=128)
    with pytest.raises(UsageError, match="experts with tp need sequence parallelism"):
        command("usp-prof", of_tiny, Configuration(tp=2, sequence_parallel=False))


def test_layers_to_recompute_and_an_offloaded_optimizer_reach_megatron() -> None:
    full = replace(EACH, recompute=Recompute.FULL)
    for granularity, method in (
        (full, "uniform --recompute-num-layers 1"),
        (replace(full, recompute_layers=3), "block --recompute-num-layers 3"),
        (replace(full, recompute_group=4), "uniform --recompute-num-layers 4"),
    ):
        assert f"--recompute-granularity full --recompute-method {method}" in command("megatron", LLAMA_8B, granularity)
    alone = command("megatron", LLAMA_8B, Configuration(offload=Offload.OPTIMIZER))
    assert "--use-distributed-optimizer --optimizer-cpu-offload --optimizer-offload-fraction 1.0" in alone


@pytest.mark.parametrize(
    ("trainer", "change", "reason"),
    [
        ("usp-prof", {"recompute": Recompute.FULL, "recompute_layers": 2}, "only some layers"),
        ("torchtitan", {"offload": Offload.OPTIMIZER, "recompute": Recompute.SELECTIVE}, "another plan"),
        ("megatron", {"offload": Offload.OPTIMIZER, "zero": 0}, "ZeRO-1"),
        ("megatron", {"offload": Offload.OPTIMIZER, "zero": 3, "pp": 1, "chunks": 1, "schedule": "1f1b"}, "FSDP"),
    ],
)
def test_unsupported_recomputation_and_offloading_are_refused(
    trainer: str, change: dict[str, Any], reason: str
) -> None:
    model = TINY if trainer == "usp-prof" else model_named("Llama-3-8B", 8192)
    with pytest.raises(UsageError, match=reason):
        command(trainer, model, replace(EACH, dtype="bf16", **change))


def test_an_unknown_trainer_is_refused() -> None:
    with pytest.raises(UsageError, match="no trainer is named"):
        command("torchtitn", LLAMA_8B, EACH)


TORCHTITAN_OPTIONS = {
    "--module", "--config", "--training.local_batch_size", "--training.global_batch_size", "--training.seq_len",
    "--parallelism.data_parallel_replicate_degree", "--parallelism.data_parallel_shard_degree",
    "--parallelism.fsdp_reshard_after_forward", "--parallelism.tensor_parallel_degree",
    "--parallelism.context_parallel_degree", "--parallelism.pipeline_parallel_degree",
    "--parallelism.expert_parallel_degree",
    "--parallelism.pipeline_parallel_schedule", "--parallelism.pipeline_parallel_microbatch_size",
    "--parallelism.pipeline_parallel_layers_per_stage",
}  # fmt: skip
"""Options of torchtitan 0.3.0 (config/configs.py and manager.py) that a plan may need, as they are typed there."""


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(dp=8, zero=3),
        Configuration(dp=8),
        Configuration(dp=4, tp=2, cp=2, zero=2),
        Configuration(dp=2, pp=4, zero=3, micro_batches=8),
        Configuration(dp=2, pp=4, zero=2, micro_batches=8, schedule="interleaved", chunks=2),
        Configuration(dp=2, pp=4, zero=2, micro_batches=8, schedule="zbv", chunks=2),
    ],
)
def test_torchtitan_options_are_accepted_by_its_parser(configuration: Configuration) -> None:
    plan = replace(configuration, recompute=Recompute.SELECTIVE)
    words = shlex.split(command("torchtitan", model_named("Llama-3-8B", 8192), plan))
    after = words[words.index("torchtitan.train") + 1 :]
    # Options without a value; predictions assume compiled layers.
    after = [word for word in after if word not in ("--compile.enable", "--training.disable_cuda_graphs")]
    assert set(after[::2]) <= TORCHTITAN_OPTIONS
    assert not any(value.startswith("--") for value in after[1::2])
    if configuration.pp > 1:
        schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
        assert schedules.get_schedule_class(after[after.index("--parallelism.pipeline_parallel_schedule") + 1])


OF_MEGATRONS_DATACLASSES = {
    "--attention-backend", "--bf16", "--context-parallel-size", "--data-parallel-sharding-strategy",
    "--qk-layernorm",
    "--expert-model-parallel-size", "--expert-tensor-parallel-size", "--ffn-hidden-size", "--fp16", "--hidden-size",
    "--kv-channels", "--lr", "--moe-ffn-hidden-size", "--moe-grouped-gemm", "--moe-router-topk",
    "--moe-shared-expert-intermediate-size", "--moe-token-dispatcher-type", "--normalization", "--num-attention-heads",
    "--num-layers", "--num-query-groups", "--optimizer-cpu-offload", "--optimizer-offload-fraction",
    "--overlap-cpu-optimizer-d2h-h2d", "--overlap-grad-reduce", "--overlap-param-gather",
    "--overlap-moe-expert-parallel-comm",
    "--pipeline-model-parallel-size", "--recompute-granularity", "--recompute-method", "--recompute-num-layers",
    "--sequence-parallel", "--tensor-model-parallel-size", "--use-distributed-optimizer", "--use-megatron-fsdp",
    "--use-precision-aware-optimizer", "--exp-avg-dtype", "--exp-avg-sq-dtype", "--recompute-modules",
    "--cpu-offloading-num-layers", "--pipeline-model-parallel-layout", "--moe-layer-freq",
    "--moe-router-pre-softmax",
}  # fmt: skip
"""Options that are fields of dataclasses in megatron-core 0.16.0."""
OF_MEGATRONS_PARSER = {
    "--ckpt-format", "--disable-bias-linear", "--fp4-format", "--fp8-format", "--fp8-param-gather",
    "--global-batch-size", "--grad-reduce-in-bf16",
    "--group-query-attention", "--max-position-embeddings", "--micro-batch-size", "--mock-data",
    "--no-gradient-accumulation-fusion", "--num-experts", "--num-virtual-stages-per-pipeline-rank",
    "--position-embedding-type", "--seq-length", "--swiglu", "--tokenizer-type", "--train-iters",
    "--untie-embeddings-and-output-weights", "--vocab-size",
}  # fmt: skip
"""Options of megatron/training/arguments.py alone, which no package of the registry holds: checked by reading."""


@pytest.mark.parametrize(
    ("model", "configuration"),
    [
        (LLAMA_8B, Configuration(dp=8)),
        (LLAMA_8B, Configuration(dp=8, zero=3)),
        (LLAMA_8B, Configuration(dp=8, zero=1, optimizer_bytes=8)),
        (LLAMA_8B, Configuration(dp=8, zero=2, dtype="fp8")),
        (LLAMA_8B, Configuration(tp=2, dtype="fp16", sequence_parallel=False, fused_attention=False)),
        (LLAMA_8B, replace(EACH, recompute=Recompute.FULL, recompute_layers=2, offload=Offload.OPTIMIZER)),
        (EXPERTS, replace(EACH, recompute=Recompute.FULL)),
        (EXPERTS, replace(EACH, recompute=Recompute.SELECTIVE, dtype="fp4")),
        (EXPERTS, replace(EACH, recompute=Recompute.SELECTIVE, recompute_modules=("layernorm", "moe_act"))),
        (EXPERTS, Configuration(dp=8, ep=8, expert_overlap=True)),
        (LLAMA_8B, Configuration(dp=8, zero=3, offload_layers=8)),
        (LLAMA_8B, Configuration(pp=5, micro_batches=5)),
        (model_named("Llama-4-Maverick", 8192), Configuration(dp=8, ep=8)),
    ],
)
def test_megatron_options_exist(model: ModelEntry, configuration: Configuration) -> None:
    words = shlex.split(command("megatron", model, configuration))
    options = {word for word in words[words.index("pretrain_gpt.py") :] if word.startswith("--")}
    assert options <= OF_MEGATRONS_DATACLASSES | OF_MEGATRONS_PARSER


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan", "usp-prof"])
def test_an_optimizer_that_a_trainer_does_not_have_is_refused(trainer: str) -> None:
    plain = Configuration(dp=8, zero=2 if trainer == "torchtitan" else 1, recompute=Recompute.SELECTIVE)
    model = replace(LLAMA_8B, name="Llama-3-8B")
    assert not refusal(trainer, model, plain)
    assert "optimizer state" in refusal(trainer, model, replace(plain, optimizer_bytes=6))


def test_megatron_dataclasses_have_the_written_fields() -> None:
    """Runs if megatron-core is installed, which contains the dataclasses but not the parser made from them."""
    configurations = [
        ("megatron.core.transformer.transformer_config", "TransformerConfig"),
        ("megatron.core.distributed.distributed_data_parallel_config", "DistributedDataParallelConfig"),
        ("megatron.core.optimizer.optimizer_config", "OptimizerConfig"),
    ]
    names = {
        f"--{field.name.replace('_', '-')}"
        for module, name in configurations
        for field in fields(getattr(pytest.importorskip(module), name))
    }
    assert names >= OF_MEGATRONS_DATACLASSES


LLAMA_3 = model_named("Llama-3-8B", 8192)
NANOTRON_KEYS = {
    "general": {"project", "run", "seed"},
    "parallelism": {"dp", "pp", "tp", "pp_engine", "tp_mode", "tp_linear_async_communication", "recompute_layer"},
    "model": {"dtype", "init_method", "model_config"},
    "tokens": {"sequence_length", "train_steps", "micro_batch_size", "batch_accumulation_per_replica"},
    "optimizer": {
        "optimizer_factory", "zero_stage", "weight_decay", "clip_grad", "accumulate_grad_in_fp32",
        "learning_rate_scheduler",
    },
    "checkpoints": {"checkpoints_path", "checkpoint_interval"},
    "logging": {"iteration_step_info_interval"},
}  # fmt: skip
"""Fields of nanotron's dataclasses (src/nanotron/config/): all required ones, and ours."""


def test_the_nanotron_file_has_its_keys_and_the_plan() -> None:
    yaml = pytest.importorskip("yaml")
    layout = Configuration(dp=4, tp=2, pp=2, zero=1, micro_batch=2, micro_batches=8, recompute=Recompute.FULL)
    words = shlex.split(command("nanotron", LLAMA_3, layout))
    file = yaml.safe_load(words[words.index("%s") + 1])
    assert {section: set(file[section]) for section in NANOTRON_KEYS} == NANOTRON_KEYS
    assert file["parallelism"] == {
        "dp": 4, "tp": 2, "pp": 2, "pp_engine": "1f1b", "tp_mode": "REDUCE_SCATTER",
        "tp_linear_async_communication": True, "recompute_layer": True,
    }  # fmt: skip
    assert file["tokens"]["micro_batch_size"] * file["tokens"]["batch_accumulation_per_replica"] * 4 == layout.batch
    assert file["optimizer"]["zero_stage"] == 1
    assert file["model"]["model_config"]["num_key_value_heads"] == 8
    assert all(isinstance(file["optimizer"]["optimizer_factory"][name], float) for name in ("adam_eps", "adam_beta1"))
    assert file["data_stages"][0]["start_training_step"] == 1
    assert words[-2:] == ["--config-file", "nanotron.yaml"]
    assert words[words.index("--nnodes") + 1] == "2"


@pytest.mark.parametrize("trainer", ["usp-prof", "megatron"])
@pytest.mark.parametrize(
    ("ranks", "node", "words"),
    [
        (16, 8, "--nproc-per-node 8 --nnodes 2 "),
        (16, 4, "--nproc-per-node 4 --nnodes 4 "),
        (12, 8, "--nproc-per-node 6 --nnodes 2 "),
        (4, 8, "--nproc-per-node 4 "),
    ],
)
def test_commands_start_one_process_per_device_of_each_node(trainer: str, ranks: int, node: int, words: str) -> None:
    text = command(trainer, TINY, Configuration(dp=ranks, dtype="fp32"), node)
    assert words in text
    assert ("--nnodes" in words) == ("--nnodes" in text)


def test_a_command_starts_the_devices_of_a_host_and_not_of_an_nvlink_domain() -> None:
    assert cluster_of("GB200").devices_per_node == 72
    assert cluster_of("GB200").devices_per_host == 4
    assert replace(cluster_of("H100"), devices_per_node=4).devices_per_host == 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"zero": 2}, "optimizer only"),
        ({"tp": 16}, "key/value heads"),
        ({"cp": 2}, "context parallelism"),
        ({"recompute": Recompute.SELECTIVE}, "selective recomputation"),
        ({"pp": 2, "schedule": "interleaved", "chunks": 2, "micro_batches": 4}, "no schedule"),
        ({"dtype": "fp8"}, "bf16"),
        ({"offload": Offload.OPTIMIZER}, "offload"),
    ],
)
def test_configurations_that_nanotron_cannot_run_are_refused(change: dict[str, Any], reason: str) -> None:
    assert not refusal("nanotron", LLAMA_3, Configuration(dp=8))
    assert reason in refusal("nanotron", LLAMA_3, replace(Configuration(dp=8), **change))
    assert "its experts" in refusal("nanotron", EXPERTS, Configuration(dp=8))
    assert "queries and keys" in refusal("nanotron", model_named("Qwen3-8B", 4096), Configuration(dp=8))
