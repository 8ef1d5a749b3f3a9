"""Hugging Face's Trainer on two processes: DDP, two micro-batches per step."""

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from usp_prof import record
from usp_prof.record.adapters.transformers import RecordCallback

SEQUENCE = 16


class Tokens(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(SEQUENCE) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


record.prepare()
folder = Path(sys.argv[1])
config = LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=64,
    max_position_embeddings=32,
)
arguments = TrainingArguments(
    output_dir=str(folder / "checkpoints"),
    max_steps=4,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    logging_steps=1,
    disable_tqdm=True,
)
callback = RecordCallback(folder / "run", sequence=SEQUENCE, peak_flops=1e9)
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Tokens(), callbacks=[callback]).train()

# A gloo thread that runs while the interpreter exits aborts the process in about one of twenty runs, also without
# our callback. Everything is written by now, so the normal exit of the interpreter is skipped.
sys.stdout.flush()
os._exit(0)
