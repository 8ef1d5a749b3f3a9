"""From files to columns: discovery, manifest, packed sources, and one folder per recorder."""
