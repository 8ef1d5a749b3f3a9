"""Which patterns are looked for? One rule a module; its docstring is its page in `usp-prof explain`.

A new rule is one file, one line in `NAMES` and one test file. Rules do not know each other.
"""

NAMES: tuple[str, ...] = (
    "slow_rank",
    "slow_host",
    "slow_link",
    "late_input",
    "host_pause",
    "late_rank",
    "shared_cores",
    "exposed_gradient_sync",
    "exposed_gathers",
    "exposed_tensor_parallel",
    "wide_tensor_parallel",
    "small_messages",
    "low_bandwidth",
    "slowed_compute",
    "host_bound",
    "blocking_sync",
    "blocking_copies",
    "unfused_optimizer",
    "memory_pressure",
    "needless_recompute",
    "wasted_tiles",
    "slow_op",
    "uneven_experts",
    "uneven_sequence",
    "unequal_lengths",
    "stage_imbalance",
    "few_micro_batches",
    "pipeline_schedule",
)
"""The rules; a test walks this folder against it."""
