"""How is a document set? One writer a module; none computes."""
