"""Communication of one rank: its parts (collectives, sends, receives), their peers, and the process groups of gloo."""
