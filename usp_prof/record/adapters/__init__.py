"""Adapters: a ready hook for each training library, one a module, imported only by who uses that library."""
