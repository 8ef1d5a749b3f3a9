"""Extras on top of the core, one folder each; the core works without them and imports none of them."""
