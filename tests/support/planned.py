"""Models and machines for the planner's tests: round numbers, so that answers can be computed by hand."""

from dataclasses import replace

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.calibration import NEUTRAL
from usp_prof.extras.planner.cases import Cases, cases_of, machine_of
from usp_prof.extras.planner.cluster import Cluster
from usp_prof.extras.planner.profiles import Profile
from usp_prof.model.configuration import Configuration
from usp_prof.model.shape import shape_of

LLAMA_8B = ModelEntry(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn_hidden=14336, vocab=128256, sequence=8192
)
PLAIN = ModelEntry(
    layers=8, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn_hidden=4096, vocab=1024, sequence=512, gated_ffn=False
)
EXPERTS = ModelEntry(
    layers=8, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn_hidden=2048, vocab=1024, sequence=512,
    experts=8, experts_per_token=2, expert_ffn_hidden=2048,
)  # fmt: skip
MACHINE = Cluster(
    "synthetic", peak_flops=1e15, memory_bytes=100e9, memory_rate=2e12, link_rate=400e9, network_rate=50e9,
    efficiency=0.5, core_efficiency=0.5, link_share=1.0, memory_share=1.0, node_latency_ns=1000,
    network_latency_ns=10_000,
)  # fmt: skip
PLAIN_TRAINER = replace(NEUTRAL, network_share=1.0)
"""A trainer without habits: only the formulas speak."""


def cases(
    *configurations: Configuration,
    model: ModelEntry = PLAIN,
    cluster: Cluster = MACHINE,
    profile: Profile = PLAIN_TRAINER,
) -> Cases:
    """Put configurations into columns for a model."""
    return cases_of(shape_of(model), machine_of(cluster), profile, configurations)
