"""Pipeline actions of ranks that mark none, inferred from their messages."""
