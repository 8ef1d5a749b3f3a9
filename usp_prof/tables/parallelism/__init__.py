"""Parallelism: the axis of each process group, and the mesh that the axes span."""
