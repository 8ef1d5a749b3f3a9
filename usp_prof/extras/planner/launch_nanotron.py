"""Launch command of nanotron: its YAML file, and the configurations that it cannot run.

The keys are those of `src/nanotron/config/` (huggingface/nanotron, 2025). Without a dataset it trains on random tokens.
"""

from __future__ import annotations

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.stages import leaves_rank_empty
from usp_prof.extras.planner.trainer_rules import Rules, Trainer, has_plain_layers, rules_except_megatron, torchrun
from usp_prof.model.configuration import Configuration, Offload, Recompute
from usp_prof.model.shape import shape_of
from usp_prof.schedule import Schedule, schedule_by_name

ENGINES = {Schedule.ONE_F_ONE_B: "1f1b", Schedule.GPIPE: "afab"}
"""Its names of pipeline schedules."""
TRIAL_STEPS = 20
FILE = "nanotron.yaml"


def _words(model: ModelEntry, c: Configuration, node: int) -> list[str]:
    """Return the words of a command that writes the YAML file and starts nanotron with it."""
    return [
        f"printf '%s' '{config_file(model, c)}' > {FILE} &&",
        f"CUDA_DEVICE_MAX_CONNECTIONS=1 {torchrun(c, node)} run_train.py --config-file {FILE}",
    ]


def config_file(model: ModelEntry, c: Configuration) -> str:
    """Return the YAML file of a configuration."""
    is_scattered = c.tp > 1 and c.sequence_parallel
    schedule = schedule_by_name(c.schedule)
    return f"""\
general:
  project: usp-prof
  run: trial
  seed: 42
parallelism:
  dp: {c.dp}
  tp: {c.tp}
  pp: {c.pp}
  pp_engine: {ENGINES.get(schedule, "1f1b") if schedule else "1f1b"}
  tp_mode: {"REDUCE_SCATTER" if is_scattered else "ALL_REDUCE"}
  tp_linear_async_communication: {_yes(is_scattered)}
  recompute_layer: {_yes(c.recompute is Recompute.FULL)}
model:
  dtype: bfloat16
  init_method:
    std: 0.02
  model_config:
    is_llama_config: true
    hidden_size: {model.hidden}
    intermediate_size: {model.ffn_hidden}
    num_hidden_layers: {model.layers}
    num_attention_heads: {model.heads}
    num_key_value_heads: {model.kv_heads or model.heads}
    max_position_embeddings: {model.sequence}
    vocab_size: {model.vocab}
    tie_word_embeddings: {_yes(model.tied_embeddings)}
tokens:
  sequence_length: {model.sequence}
  micro_batch_size: {c.micro_batch}
  batch_accumulation_per_replica: {c.micro_batches}
  train_steps: {TRIAL_STEPS}
optimizer:
  zero_stage: {c.zero}
  accumulate_grad_in_fp32: true
  clip_grad: 1.0
  weight_decay: 0.01
  optimizer_factory:
    name: adamW
    adam_beta1: 0.9
    adam_beta2: 0.95
    adam_eps: 1.0e-08
    torch_adam_is_fused: true
  learning_rate_scheduler:
    learning_rate: 0.0001
    lr_warmup_steps: 2
    lr_warmup_style: linear
    lr_decay_style: linear
data_stages:
- name: trial
  start_training_step: 1
  data:
    dataset: null
    seed: 42
checkpoints:
  checkpoints_path: checkpoints
  checkpoint_interval: {10 * TRIAL_STEPS}
logging:
  iteration_step_info_interval: 1
"""


def _yes(value: object) -> str:
    return "true" if value else "false"


def _rules_of_model(model: ModelEntry) -> Rules:
    yield not has_plain_layers(model), "layers that differ, or are not plain attention, are not a Llama"
    yield bool(model.experts), "plans do not cover its experts"
    yield not model.gated_ffn, "the feed-forward block of its Llama has a gate"
    yield model.name.startswith("Qwen3"), "its Llama has no norms of queries and keys"
    head_dim = model.head_dim or model.hidden // model.heads
    yield head_dim * model.heads != model.hidden, "it needs heads x head size = hidden size"


def _rules(model: ModelEntry, c: Configuration) -> Rules:
    yield (model.kv_heads or model.heads) < c.tp, f"tp={c.tp} is more than {model.kv_heads} key/value heads"
    yield c.cp > 1, "its Llama has no context parallelism"
    yield c.zero > 1, "it shards the optimizer only (ZeRO-1)"
    yield c.replicas > 1, "it has no hybrid sharding"
    yield c.dtype != "bf16", "plans for it are in bf16"
    yield c.pp > 1 and schedule_by_name(c.schedule) not in ENGINES, f"it has no schedule {c.schedule}"
    yield leaves_rank_empty(shape_of(model), c.pp), f"its split by cost leaves a rank of pp={c.pp} without a block"
    yield c.recompute is Recompute.SELECTIVE, "it has no selective recomputation"
    yield c.offload is not Offload.NONE, "it does not offload the optimizer"
    yield from rules_except_megatron(c)


NANOTRON = Trainer(_words, _rules_of_model, _rules)
