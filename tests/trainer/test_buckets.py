"""Do buckets of gradients start in one order on all ranks, and as soon as they may?"""

from __future__ import annotations

import torch

from trainer.parallel.data import Buckets
from trainer.parallel.mesh import Layout, Mesh


def test_a_bucket_waits_for_those_before_it() -> None:
    early, late = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
    mesh = Mesh.build(Layout(), 0, set())
    buckets = Buckets({0: torch.nn.ModuleList([early, late])}, mesh, 0, sharded=False)
    first, second = buckets  # in the order in which backward usually comes by
    buckets.begin(0, last=True)
    early(torch.ones(2)).sum().backward()  # this rank's gradients come the other way round
    assert not any(bucket.launched for bucket in buckets)
    late(torch.ones(2)).sum().backward()
    assert first.launched
    assert second.launched
    buckets.finish()
    assert torch.equal(first.master.grad, torch.ones(4))
    assert torch.equal(second.master.grad, torch.ones(4))


def test_gradients_of_several_passes_add_up_before_anything_starts() -> None:
    layer = torch.nn.Linear(2, 2, bias=False)
    buckets = Buckets({0: layer}, Mesh.build(Layout(), 0, set()), 0, sharded=False)
    (bucket,) = buckets
    for last in (False, True):
        assert not bucket.launched
        buckets.begin(0, last=last)
        layer(torch.ones(2)).sum().backward()
    assert bucket.launched
    buckets.finish()
    assert torch.equal(bucket.master.grad, torch.full((4,), 2.0))
    buckets.publish()
    assert bucket.master.grad is None
    assert not bucket.grad.any()
