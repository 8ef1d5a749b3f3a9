"""From files to columns: discovery, manifest, packed sources, and one folder for each recorder."""
