"""Two processes, two groups with the same ranks, collectives whose size identifies the group, and transfers."""

import os
import sys

import torch
import torch.distributed as dist

from usp_prof import record

record.prepare()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
pipeline = dist.new_group(list(range(world)), group_desc="mesh_pp")
tensor = dist.new_group(list(range(world)))
logging = dist.new_group(list(range(world)), group_desc="log")
model = {"name": "toy", "layers": 2, "hidden": 8, "heads": 2, "ffn_hidden": 16, "vocab": 10}
with record.session(
    sys.argv[1],
    mesh={"dp": world},
    model=model,
    sequence=4,
    groups={"dp": dist.group.WORLD, ("tp", "ep"): tensor},
    name="plain",
    schedule="1F1B",
    stages=[rank],
    micro_batches=2,
    dtype=torch.float64,
    peak_flops=1e9,
    peak_source="declared",
    faults=[{"kind": "slow_rank", "rank": 1, "factor": 2.0}],
) as session:
    for step in range(5):
        with session.step():
            with record.phase("forward"):
                work = [dist.all_reduce(torch.ones(100 + step), async_op=True)]
                work.append(dist.all_reduce(torch.ones(200 + step), group=tensor, async_op=True))
                # the same size in two groups at the same time: only order and threads distinguish them
                work.append(dist.all_reduce(torch.ones(7), group=pipeline, async_op=True))
                work.append(dist.all_reduce(torch.ones(7), group=tensor, async_op=True))
                for transfer in work:
                    transfer.wait()
            with record.pipeline_transfer("send_f", stage=rank, micro_batch=0, peer=1 - rank):
                sent, received = torch.ones(9), torch.empty(9)
                transfers = [
                    dist.P2POp(dist.isend, sent, 1 - rank, group=pipeline),
                    dist.P2POp(dist.irecv, received, 1 - rank, group=pipeline),
                ]
                for transfer in dist.batch_isend_irecv(transfers):
                    transfer.wait()
            with record.phase("optimizer"):
                dist.reduce_scatter(torch.empty(30), [torch.ones(30)] * world)
                dist.all_to_all_single(torch.empty(12), torch.ones(12), group=tensor)
            with record.phase("log"):
                dist.barrier(group=logging)
dist.destroy_process_group()
os._exit(0)  # torch's threads may still run and abort a process that exits
