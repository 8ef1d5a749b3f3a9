"""The playbook, live: lessons that record a technique before and after, and set measurement beside theory."""
