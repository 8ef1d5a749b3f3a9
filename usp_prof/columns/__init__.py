"""Column store and operations on it: arrays with codes, intervals, order, lanes, statistics."""
