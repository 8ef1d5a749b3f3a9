"""Tokens per step of Hugging Face's Trainer in synthetic layouts; a real run is in test_programs.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from usp_prof.record.adapters import transformers as adapter  # noqa: E402 - after the libraries it needs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Declare = Callable[..., dict[str, Any]]

SEQUENCE = 16


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Declare:
    """Return the adapter's declaration for 8 ranks, 2 samples per batch, 3 micro-batches per step."""

    def declared(
        *, parallelism: object = None, model: dict[str, object] | None = None, **arguments: object
    ) -> dict[str, Any]:
        state = SimpleNamespace(parallelism_config=parallelism, device_mesh=None)
        monkeypatch.setattr(adapter, "AcceleratorState", lambda: state)
        given: dict[str, Any] = {
            "world_size": 8,
            "per_device_train_batch_size": 2,
            "train_batch_size": 2,
            "gradient_accumulation_steps": 3,
            "bf16": True,
            "fp16": False,
            "gradient_checkpointing": False,
            "accelerator_config": SimpleNamespace(split_batches=False),
            **arguments,
        }
        module = torch.nn.Linear(2, 2)
        for name, value in (model or {}).items():
            setattr(module, name, value)
        trainer_state = SimpleNamespace(train_batch_size=given["train_batch_size"])
        args: Any = SimpleNamespace(**given)
        split = adapter.batch_split(args, trainer_state, module)  # type: ignore[arg-type]
        return dict(adapter.declared(args, split, {"sequence": SEQUENCE}))

    return declared


def tokens(declared: dict[str, Any]) -> tuple[int, int]:
    return declared["micro_batch_tokens"], declared["tokens_per_step"]


def test_data_parallel_ranks_have_their_own_batch(declare: Declare) -> None:
    assert tokens(declare()) == (2 * 16, 2 * 16 * 3 * 8)


@pytest.mark.parametrize(
    ("sizes", "at_once"),
    [
        ({"tp_size": 4, "dp_shard_size": 2}, 2),
        ({"cp_size": 2, "dp_shard_size": 4}, 4),
        ({"sp_size": 8}, 1),
        ({"tp_size": 2, "cp_size": 2, "dp_replicate_size": 1, "dp_shard_size": 2}, 2),
        ({"dp_replicate_size": 2, "dp_shard_size": 4}, 8),
    ],
)
def test_ranks_of_a_tp_cp_or_sp_group_share_their_batch(declare: Declare, sizes: dict[str, int], at_once: int) -> None:
    config = accelerate.ParallelismConfig(**sizes)
    assert tokens(declare(parallelism=config)) == (2 * 16, 2 * 16 * 3 * at_once)


def test_a_model_split_at_loading_declares_its_degree(declare: Declare) -> None:
    assert tokens(declare(model={"tp_size": 4}))[1] == 2 * 16 * 3 * 2
    config = SimpleNamespace(distributed_config=SimpleNamespace(pp_size=2))
    assert tokens(declare(model={"tp_size": 2, "config": config}))[1] == 2 * 16 * 3 * 2


def test_the_deepspeed_degree_is_read_from_its_configuration(declare: Declare) -> None:
    deepspeed = SimpleNamespace(config={"tensor_parallel": {"autotp_size": 4}})
    assert tokens(declare(hf_deepspeed_config=deepspeed))[1] == 2 * 16 * 3 * 2
    assert tokens(declare(hf_deepspeed_config=SimpleNamespace(config={})))[1] == 2 * 16 * 3 * 8


def test_a_batch_that_is_split_over_the_ranks_is_counted_once(declare: Declare) -> None:
    split = SimpleNamespace(split_batches=True)
    assert tokens(declare(train_batch_size=16, accelerator_config=split)) == (2 * 16, 16 * 16 * 3)


def test_the_batch_size_in_use_counts_not_the_requested_one(declare: Declare) -> None:
    assert tokens(declare(per_device_train_batch_size=4, train_batch_size=1))[1] == 16 * 3 * 8


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(SEQUENCE) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


class FailingOnce(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
    failed = False

    def on_step_begin(self, _args: object, state: Any, *_: object, **__: object) -> None:
        if state.global_step == 3 and not self.failed:
            self.failed = True
            raise ZeroDivisionError


def trainer_of(folder: Path, *more: Any) -> Any:
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=64
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "checkpoints"), max_steps=5, use_cpu=True, report_to=[], save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    recorder = adapter.RecordCallback(folder, peak_flops=1e9, wait=0, active=3)
    model = transformers.LlamaForCausalLM(config)
    return transformers.Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[recorder, *more])


def test_a_training_that_raises_keeps_its_trace_and_the_next_one_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        trainer_of(tmp_path / "first", FailingOnce()).train()
    trainer_of(tmp_path / "second").train()
    assert (tmp_path / "first" / "rank0.json.gz").exists()
    assert (tmp_path / "second" / "rank0.json.gz").exists()


def test_a_trainer_whose_training_raised_is_recorded_when_it_trains_again(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, FailingOnce())
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    (tmp_path / "rank0.json.gz").unlink(missing_ok=True)
    trainer.train()
    assert (tmp_path / "rank0.json.gz").exists()
