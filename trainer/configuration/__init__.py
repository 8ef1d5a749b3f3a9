"""Configuration: what a user asks for: options, faults, the layout of ranks, the shape of the model."""
