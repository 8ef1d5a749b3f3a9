"""Commands of plans pass the trainers' own checks. `scripts/test-launch` installs their packages.

megatron-core has the dataclasses that Megatron-LM's options fill, and their checks (`__post_init__`); its parser is not
packaged. torchtitan's options are the fields of its configuration.
"""

import shlex
from dataclasses import fields, replace
from enum import Enum
from types import UnionType
from typing import Any, get_args, get_type_hints

import pytest
import torch
from planned import EXPERTS, LLAMA_8B

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.cluster import cluster_of
from usp_prof.extras.planner.launch import command
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import search
from usp_prof.model.configuration import Configuration, Offload, Recompute
from usp_prof.model.known_models import model_named

MEGATRON = "pip install --no-deps megatron-core==0.16.1, in an environment apart (scripts/test-launch)"
TORCHTITAN = "pip install --no-deps torchtitan==0.3.0 and what it needs, in an environment apart (scripts/test-launch)"
CONFIGURATIONS = [
    ("megatron.core.transformer.transformer_config", "TransformerConfig"),
    ("megatron.core.distributed.distributed_data_parallel_config", "DistributedDataParallelConfig"),
    ("megatron.core.optimizer.optimizer_config", "OptimizerConfig"),
]
RENAMED = {"num_experts": "num_moe_experts", "num_virtual_stages_per_pipeline_rank": ""}
"""Options that its `core_transformer_config_from_args` hands on under another name, or works into another field."""
FULL = Configuration(tp=2, pp=2, dp=2, zero=1, micro_batches=8, recompute=Recompute.FULL)

pytestmark = pytest.mark.filterwarnings("ignore")  # Megatron's own warnings about optional packages


def options_of(words: list[str]) -> dict[str, list[str]]:
    """Split words into options and their values, named like fields."""
    options: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            options[word.removeprefix("--").replace("-", "_")] = []
        elif options:
            options[next(reversed(options))].append(word)
    return options


def value_of(words: list[str], kind: Any) -> Any:
    """Read a value as the field's type; an option without one is a switch."""
    if not words:
        return True
    kinds = get_args(kind) if isinstance(kind, UnionType) or get_args(kind) else (kind,)
    for candidate in kinds:
        if isinstance(candidate, type) and issubclass(candidate, Enum):
            return candidate[words[0]]
        if candidate in (int, float, str):
            return candidate(words[0])
    return words[0]


@pytest.mark.parametrize(
    ("model", "configuration"),
    [
        (LLAMA_8B, Configuration(dp=8)),
        (LLAMA_8B, Configuration(dp=8, zero=3)),
        (LLAMA_8B, Configuration(tp=4, pp=2, micro_batches=8, schedule="interleaved", chunks=2)),
        (LLAMA_8B, Configuration(dp=4, cp=2, zero=1, recompute=Recompute.SELECTIVE)),
        (LLAMA_8B, FULL),
        (LLAMA_8B, replace(FULL, recompute_layers=3)),
        (LLAMA_8B, replace(FULL, recompute_group=4)),
        (LLAMA_8B, replace(FULL, offload=Offload.OPTIMIZER)),
        (model_named("Llama-3-405B", 8192), replace(FULL, tp=8, pp=8, chunks=8, schedule="interleaved")),
        (LLAMA_8B, Configuration(tp=8, offload=Offload.OPTIMIZER, dtype="fp8")),
        (EXPERTS, Configuration(dp=4, tp=2, ep=4, zero=1)),
        (model_named("Qwen3-30B-A3B", 4096), Configuration(dp=8, tp=4, ep=8, zero=1)),
        (LLAMA_8B, Configuration(pp=5, micro_batches=5)),
        (LLAMA_8B, Configuration(pp=3, micro_batches=6, schedule="interleaved", chunks=2)),
        (model_named("Llama-4-Maverick", 8192), Configuration(dp=8, ep=8, zero=1)),
    ],
)
def test_the_checks_of_megatron_pass(
    model: ModelEntry, configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("megatron.core", reason=MEGATRON)
    # As if Transformer Engine were there, which needs a GPU.
    monkeypatch.setattr("megatron.core.optimizer.optimizer_config.is_te_min_version", lambda *_, **__: True)
    words = shlex.split(command("megatron", model, configuration))
    typed = options_of(words[words.index("pretrain_gpt.py") + 1 :])
    given = {RENAMED.get(name, name): values for name, values in typed.items()}
    used = set()
    for module, name in CONFIGURATIONS:
        kind = getattr(pytest.importorskip(module, reason=MEGATRON), name)
        hints = get_type_hints(kind)
        names = {field.name for field in fields(kind) if field.init} & given.keys()
        # Fields without an option: pipelines send in the type of the weights, and a switch turns biases off.
        derived = {"pipeline_dtype": torch.bfloat16, "add_bias_linear": "disable_bias_linear" not in given}
        derived = {field: value for field, value in derived.items() if field in hints}
        instance = kind(**{field: value_of(given[field], hints[field]) for field in names}, **derived)
        assert all(getattr(instance, field) is not None for field in names)
        used |= names
    assert {"num_layers", "tensor_model_parallel_size", "bf16"} <= used
    assert ("recompute_num_layers" in used) == (configuration.recompute is Recompute.FULL)
    assert ("optimizer_cpu_offload" in used) == (configuration.offload is Offload.OPTIMIZER)


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(dp=8, zero=3),
        Configuration(dp=4, tp=2, cp=2, zero=2),
        Configuration(dp=2, pp=4, zero=2, micro_batches=8, schedule="interleaved", chunks=2),
    ],
)
def test_the_configuration_of_torchtitan_has_the_written_fields(configuration: Configuration) -> None:
    configs = pytest.importorskip("torchtitan.config.configs", reason=TORCHTITAN)
    sections = {"parallelism": configs.ParallelismConfig, "training": configs.TrainingConfig}
    plan = replace(configuration, recompute=Recompute.SELECTIVE)
    words = shlex.split(command("torchtitan", model_named("Llama-3-8B", 8192), plan))
    given = options_of(words[words.index("torchtitan.train") + 1 :])
    for section, kind in sections.items():
        hints = get_type_hints(kind)
        own_options = {
            name.partition(".")[2]: values for name, values in given.items() if name.startswith(f"{section}.")
        }
        assert own_options
        assert own_options.keys() <= hints.keys()
        kind(**{name: value_of(values, hints[name]) for name, values in own_options.items()})


SELECTIVE = Configuration(zero=2, recompute=Recompute.SELECTIVE)


@pytest.mark.parametrize(
    ("model", "configuration"),
    [
        ("Llama-3-8B", replace(SELECTIVE, dp=8)),
        ("Llama-3-8B", replace(SELECTIVE, dp=2, tp=4, cp=2)),
        ("Llama-3-8B", replace(SELECTIVE, dp=2, pp=4, micro_batches=8)),
        ("Llama-3-8B", replace(SELECTIVE, pp=4, micro_batches=8, schedule="interleaved", chunks=3)),
        ("DeepSeek-V3", replace(SELECTIVE, dp=8, ep=8)),
        ("Qwen3-30B-A3B", Configuration(dp=4, ep=8, tp=2, etp=1, zero=3, recompute=Recompute.FULL)),
        ("Qwen3-32B", Configuration(dp=8, zero=3, recompute=Recompute.FULL)),
        ("GPT-OSS-20B", Configuration(dp=8, ep=8, zero=3, recompute=Recompute.FULL)),
    ],
)
def test_torchtitan_reads_the_command_and_accepts_the_model(model: str, configuration: Configuration) -> None:
    check_with_torchtitan(model_named(model, 4096), configuration)


def test_torchtitan_accepts_the_commands_of_plans() -> None:
    model = model_named("Llama-3-8B", 4096)
    plans = search(Question(model, cluster_of("H100"), devices=64, batch=256, trainer="torchtitan")).best
    assert len(plans) > 100
    for plan in plans[::20]:
        check_with_torchtitan(model, plan.configuration)


def check_with_torchtitan(model: ModelEntry, configuration: Configuration) -> None:
    """Check a command with torchtitan's parser, and with the checks of its configuration and of its models."""
    pytest.importorskip("torchtitan.models.llama3.config_registry", reason=TORCHTITAN, exc_type=ImportError)
    manager = pytest.importorskip("torchtitan.config.manager", reason=TORCHTITAN)
    pipelines = pytest.importorskip("torchtitan.distributed.pipeline_parallel", reason=TORCHTITAN)
    words = shlex.split(command("torchtitan", model, configuration))
    config = manager.ConfigManager().parse_args(words[words.index("torchtitan.train") + 1 :])
    config.model_spec.model.update_from_config(config=config)
    assert config.parallelism.tensor_parallel_degree == configuration.tp
    assert config.parallelism.expert_parallel_degree == configuration.ep
    assert type(config.activation_checkpoint).__qualname__.startswith(configuration.recompute.title())
    if configuration.pp > 1:
        stages, *_ = pipelines._get_pipeline_metadata(configuration, config.parallelism, config.model_spec.model)
        assert stages == configuration.stages
