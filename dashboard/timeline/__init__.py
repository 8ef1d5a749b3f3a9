"""How can 64 ranks of a million events be panned like a map? Rows, a pyramid of levels of detail, tiles."""
