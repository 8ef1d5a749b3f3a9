"""Cross-rank matching: collective instances across ranks, and the clock fit that follows from them."""
