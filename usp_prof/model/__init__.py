"""Vocabulary: one noun a module (error, schema, metric, axis, health, edit, finding)."""
