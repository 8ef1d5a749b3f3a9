"""Pieces that several pages show; two of them have JavaScript beside them."""
