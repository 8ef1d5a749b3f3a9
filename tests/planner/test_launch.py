"""Is the command that a plan gives one that the trainer takes?"""

import shlex

import pytest
from planned import EXPERTS, LLAMA_8B

from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.model.errors import UsageError
from usp_prof.planner.launch import command

EACH = Configuration(
    dp=4, tp=2, pp=2, zero=1, micro_batches=8, schedule="interleaved", chunks=2, recompute=Recompute.FULL
)


def test_our_trainer_takes_it() -> None:
    config = pytest.importorskip("trainer.options")
    words = shlex.split(command("usp-prof", EXPERTS, Configuration(dp=4, ep=2, pp=2, micro_batches=8)))
    parsed = config.parse(words[words.index("trainer/run.py") + 1 :])
    assert (parsed.dp, parsed.pp, parsed.ep, parsed.micro_batches) == (4, 2, 2, 8)


def test_torchtitan() -> None:
    text = command("torchtitan", LLAMA_8B, EACH)
    assert "--parallelism.data_parallel_shard_degree 4" in text
    assert "--parallelism.pipeline_parallel_schedule Interleaved1F1B" in text
    assert "--training.global_batch_size 32" in text
    assert "--activation_checkpoint.mode full" in text


def test_megatron() -> None:
    text = command("megatron", EXPERTS, EACH)
    assert "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2" in text
    assert "--sequence-parallel" in text
    assert "--use-distributed-optimizer" in text
    assert "--expert-model-parallel-size 1" in text


def test_an_unknown_trainer_is_refused() -> None:
    with pytest.raises(UsageError, match="no trainer is named"):
        command("torchtitn", LLAMA_8B, EACH)
