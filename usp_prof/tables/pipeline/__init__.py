"""Pipeline actions inferred from messages, for ranks without action marks."""
