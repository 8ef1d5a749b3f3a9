"""What words does the product speak? One noun a module: errors, schemas, metrics, axes, health, edits, findings."""
