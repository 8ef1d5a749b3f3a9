"""Rules: each looks for one pattern; its docstring is its page in `usp-prof explain`.

A rule is a class without instances: `CODE`, `TITLE`, its required inputs (`NEEDS`) and `look`. Rules on one cause share
a file. A new rule is one class, one line in `NAMES` and one test. Rules do not depend on each other; measurements
that they share are in the folder above.
"""

NAMES: tuple[str, ...] = (
    "slow_ranks.SlowRank",
    "slow_ranks.SlowHost",
    "links.SlowLink",
    "hosts.LateInput",
    "hosts.HostPause",
    "slow_ranks.LateRank",
    "contention.SharedCores",
    "exposed_communication.ExposedGradientSync",
    "exposed_communication.ExposedGathers",
    "exposed_communication.ExposedTensorParallel",
    "links.WideTensorParallel",
    "links.SmallMessages",
    "links.LowBandwidth",
    "contention.SlowedCompute",
    "hosts.HostBound",
    "blocked_host.BlockingSync",
    "blocked_host.BlockingCopies",
    "kernels.UnfusedOptimizer",
    "blocked_host.MemoryPressure",
    "needless_recompute.NeedlessRecompute",
    "kernels.WastedTiles",
    "kernels.SlowOp",
    "uneven_work.UnevenExperts",
    "uneven_work.UnevenSequence",
    "unequal_lengths.UnequalLengths",
    "pipelines.StageImbalance",
    "pipelines.FewMicroBatches",
    "pipelines.PipelineSchedule",
)
"""Module and class of each rule, in the order in which they are asked; a test walks this folder against it."""
