"""Communication of one rank: its parts (collectives, sends, receives), their peers, and gloo's process groups."""
