"""Gradient buckets: they start in one order on all ranks, as early as possible."""

from __future__ import annotations

import torch

from trainer.configuration.layout import Layout
from trainer.parallel.data_parallel import Bucket, Buckets
from trainer.parallel.mesh import Mesh
from trainer.parallel.weights import FlatWeights, Note, constant

CPU = torch.device("cpu")


def layer_on_paper() -> torch.nn.Linear:
    layer = torch.nn.Linear(2, 2, bias=False, device="meta")
    layer.weight.note = Note(constant(1), (2, 2), (0, 0))
    return layer


def buckets_of(chunk: torch.nn.Module) -> Buckets:
    """Return a bucket per weight, the last weight first."""
    mesh = Mesh.build(Layout(), 0, set())
    names = reversed([name for name, _ in chunk.named_parameters()])
    return Buckets(
        {0: chunk},
        {0: [Bucket(FlatWeights(chunk, [name], CPU, multiple=1), mesh["data"]) for name in names]},
        mesh["tp"],
    )


def test_a_bucket_waits_for_those_before_it() -> None:
    early, late = layer_on_paper(), layer_on_paper()
    buckets = buckets_of(torch.nn.ModuleList([early, late]))
    first, second = buckets  # in the usual order of backward
    buckets.begin(0, last=True)
    early(torch.ones(2)).sum().backward()  # this rank's gradients arrive in the reverse order
    assert not any(bucket.launched for bucket in buckets)
    late(torch.ones(2)).sum().backward()
    assert first.launched
    assert second.launched
    buckets.finish()
    assert torch.equal(first.gradient, torch.ones(4))
    assert torch.equal(second.gradient, torch.ones(4))


def test_gradients_of_several_passes_add_up_before_anything_starts() -> None:
    layer = layer_on_paper()
    buckets = buckets_of(layer)
    (bucket,) = buckets
    for last in (False, True):
        assert not bucket.launched
        buckets.begin(0, last=last)
        layer(torch.ones(2)).sum().backward()
    assert bucket.launched
    buckets.finish()
    assert torch.equal(bucket.gradient, torch.full((4,), 2.0))
    buckets.publish()
    assert bucket.gradient is None
    assert bucket.grad is None
