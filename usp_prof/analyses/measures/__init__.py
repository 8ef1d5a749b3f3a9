"""What analyses are made of, measured once a run: the partition of steps, arrivals, what ops cost, pipeline actions."""
