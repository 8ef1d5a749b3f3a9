"""Which patterns are looked for? One rule a module; its docstring is its page in `usp-prof explain`.

A new rule is one file, one line in `NAMES` and one test file. Rules do not know each other.
"""

NAMES: tuple[str, ...] = (
    "slow_rank",
    "slow_link",
    "late_input",
    "host_pause",
    "exposed_gradient_sync",
    "small_messages",
    "host_bound",
    "stage_imbalance",
    "pipeline_schedule",
)
"""The rules; a test walks this folder against it."""
