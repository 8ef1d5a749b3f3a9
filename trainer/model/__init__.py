"""The decoder: its layers and its mixture of experts."""
