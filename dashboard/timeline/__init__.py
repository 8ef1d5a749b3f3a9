"""The timeline: rows, levels of detail, tiles; 64 ranks of a million events can be panned like a map."""
