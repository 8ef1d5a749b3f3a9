"""Step cuts: step boundaries on ranks that do not mark them."""
