"""The decoder that is trained: its shape, its layers and its mixture of experts."""
