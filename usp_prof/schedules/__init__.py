"""Pipeline schedules: the order of actions of each rank, how long they take, and the bubble that is left."""
