"""Kineto traces as columns: split, decode, salvage, and health of what was damaged."""
