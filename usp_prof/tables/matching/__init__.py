"""Matching over ranks: parts that belong to the same call, and the clock fit that follows from them."""
