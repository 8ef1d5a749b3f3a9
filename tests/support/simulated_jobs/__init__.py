"""Simulated training jobs: Kineto traces of GPU jobs, with faults whose cost follows from a run without them.

The simulation is event-driven and shares no code with the product's replay. `options.py` describes a job and its fault,
`job.py` simulates and measures it, `traces.py` writes it, and `cases.py` draws faults with their expected repairs.
The workloads are in `replicas.py`, `sharding.py`, `splits.py` and `pipelines.py`. They are programs of one rank, built
from `layers.py` and `messages.py`. `hosts.py` has the calls of a host, and `devices.py` the streams.
"""
