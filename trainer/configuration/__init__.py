"""Configuration: options, faults, the layout of ranks, the shape of the model."""
