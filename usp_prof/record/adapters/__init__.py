"""Which training libraries have a ready hook? One module each, imported only by who uses that library."""
