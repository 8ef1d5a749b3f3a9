"""What is wrong, where, and what is it worth? Rules name an edit; the engine replays and ranks them."""
