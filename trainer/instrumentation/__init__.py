"""Instrumentation: paced compute, injected faults and marks, attached to a finished stage from outside."""
