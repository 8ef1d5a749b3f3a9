"""Questions of the timeline page: tiles, details of a slice, search, contents of an area, rows of calls, rank wall."""
