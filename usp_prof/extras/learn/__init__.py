"""The playbook, live: lessons that record a technique before and after, and compare measurement with theory."""
