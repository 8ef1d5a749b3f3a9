"""Adapters: ready-made hooks for training libraries, one per module, imported only with their library."""
