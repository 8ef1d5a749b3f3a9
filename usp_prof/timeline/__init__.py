"""Interactive timeline: rows and slices of a run in levels of detail, for the dashboard and for the HTML report."""
