"""The decoder that is trained: its layers and its mixture of experts."""
