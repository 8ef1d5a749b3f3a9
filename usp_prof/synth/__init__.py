"""What would a declared run look like? Traces of every rank with the truth in a side file."""
