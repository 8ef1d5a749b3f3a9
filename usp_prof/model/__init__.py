"""Vocabulary: one noun per module (error, schema, metric, axis, health, edit, finding)."""
