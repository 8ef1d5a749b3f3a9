"""A single process compared with the plain reference and the losses in the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from trainer_fleet import COMMON
from trainer_reference import Reference

from trainer.batches import Batches
from trainer.build import build, wanted_groups
from trainer.configuration.command_line import parse
from trainer.instrumentation.injection import Faults
from trainer.parallel.mesh import Mesh
from trainer.rules import resolve
from trainer.step import learning_rate

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())


@pytest.mark.parametrize(("name", "options"), [("dense", ""), ("experts", "--experts 4")])
def test_one_process_trains_as_the_reference_does(name: str, options: str) -> None:
    config = resolve(parse([*COMMON.split(), *options.split()]), 1)
    mesh = Mesh.build(config.layout, 0, wanted_groups(config) - {"log"})
    cpu = torch.device("cpu")
    update = build(config, mesh, cpu, Faults(config, 0))
    reference = Reference(config.shape, dict(update.chunks[0].named_parameters()))
    batches = Batches(config, mesh.place, cpu)
    chosen = config.options
    for step in range(chosen.steps):
        passes = batches.update(step)
        tokens, targets = (torch.cat(parts) for parts in zip(*passes, strict=True))
        loss, size = reference.update(tokens, targets, learning_rate(config, step), chosen.clip, chosen.weight_decay)
        outcome = update(step, passes)
        assert float(outcome.loss) == pytest.approx(loss, rel=0, abs=1e-9)
        assert float(outcome.norm) == pytest.approx(size, rel=0, abs=1e-9)
        assert float(outcome.loss) == pytest.approx(GOLDEN[name]["loss"][step], rel=0, abs=1e-9)
        assert float(outcome.norm) == pytest.approx(GOLDEN[name]["norm"][step], rel=0, abs=1e-9)


def test_the_loss_falls() -> None:
    assert GOLDEN["dense"]["loss"][-1] < GOLDEN["dense"]["loss"][0] - 0.5
