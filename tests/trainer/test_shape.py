"""Model size: the configuration's, and that of its weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trainer.build import build, wanted_groups
from trainer.configuration.command_line import parse
from trainer.configuration.load import load_shape
from trainer.configuration.options import OptionError
from trainer.instrumentation.injection import Faults
from trainer.parallel.mesh import Mesh
from trainer.rules import resolve

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 256,
    "max_position_embeddings": 32,
    "rope_theta": 5e5,
    "rms_norm_eps": 1e-6,
}
MIXTURE = {"num_local_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 32}


def file_of(folder: Path, values: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


@pytest.mark.parametrize("more", [{}, MIXTURE])
def test_a_configuration_gives_a_model_with_the_counted_weights(tmp_path: Path, more: dict[str, int]) -> None:
    config = resolve(parse(["--model", file_of(tmp_path, LLAMA | more), "--device", "cpu"]), 1)
    shape = config.shape
    assert (shape.name, shape.kv_heads, shape.sequence, shape.rope_theta, shape.norm_eps) == ("llama", 2, 32, 5e5, 1e-6)
    mesh = Mesh.build(config.layout, 0, wanted_groups(config))
    update = build(config, mesh, torch.device("cpu"), Faults(config, 0))
    assert sum(weight.numel() for weight in update.chunks[0].parameters()) == shape.parameters
    idle = 3 * 3 * 64 * 32 * 2 if more else 0
    assert shape.active_parameters == shape.parameters - idle
    entry = shape.entry()
    assert (entry.parameters, entry.active_parameters) == (shape.parameters, shape.active_parameters)


def test_invalid_configurations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no vocab"):
        load_shape(file_of(tmp_path, {name: size for name, size in LLAMA.items() if name != "vocab_size"}))
    with pytest.raises(OptionError, match="heads of an odd width"):
        load_shape(file_of(tmp_path, LLAMA | {"head_dim": 9}))
    (tmp_path / "config.json").write_text("not json")
    with pytest.raises(OptionError, match=r"config\.json"):
        load_shape(str(tmp_path / "config.json"))
    with pytest.raises(OptionError, match="No such file"):
        load_shape(str(tmp_path / "none.json"))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(OptionError, match=r"config\.json"):
        load_shape(str(tmp_path / "config.json"))
