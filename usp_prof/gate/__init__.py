"""Did it get slower? Baseline, policy, verdict by evidence."""
