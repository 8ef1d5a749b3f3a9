"""Step cuts: where steps begin on ranks that do not mark them."""
