"""Which patterns are known? One rule a file."""
