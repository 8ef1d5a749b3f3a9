"""Gradient buckets: they start in one order on all ranks, as early as possible."""

from __future__ import annotations

import torch

from trainer.configuration.layout import Layout
from trainer.parallel.data_parallel import Buckets, make_buckets
from trainer.parallel.mesh import Mesh
from trainer.parallel.placement import Placement
from trainer.parallel.weights import Constant, Note

CPU = torch.device("cpu")


def layer_on_paper() -> torch.nn.Linear:
    layer = torch.nn.Linear(2, 2, bias=False, device="meta")
    layer.weight.note = Note(Constant(1), Placement((2, 2), (0, 0)))
    return layer


def test_a_bucket_waits_for_those_before_it() -> None:
    early, late = layer_on_paper(), layer_on_paper()
    mesh = Mesh.build(Layout(), 0, set())
    buckets = Buckets({0: make_buckets(torch.nn.ModuleList([early, late]), mesh, CPU, 0, sharded=False)}, mesh)
    first, second = buckets  # in the order in which backward usually comes by
    buckets.begin(0, last=True)
    early(torch.ones(2)).sum().backward()  # this rank's gradients come the other way round
    assert not any(bucket.launched for bucket in buckets)
    late(torch.ones(2)).sum().backward()
    assert first.launched
    assert second.launched
    buckets.finish()
    assert torch.equal(first.part.gradient, torch.ones(4))
    assert torch.equal(second.part.gradient, torch.ones(4))


def test_gradients_of_several_passes_add_up_before_anything_starts() -> None:
    layer = layer_on_paper()
    mesh = Mesh.build(Layout(), 0, set())
    buckets = Buckets({0: make_buckets(layer, mesh, CPU, 0, sharded=False)}, mesh)
    (bucket,) = buckets
    for last in (False, True):
        assert not bucket.launched
        buckets.begin(0, last=last)
        layer(torch.ones(2)).sum().backward()
    assert bucket.launched
    buckets.finish()
    assert torch.equal(bucket.part.gradient, torch.full((4,), 2.0))
    buckets.publish()
    assert bucket.part.gradient is None
    assert not bucket.grad.any()
