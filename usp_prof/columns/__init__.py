"""The column store and the algebra on it: arrays with codes, intervals, order, lanes, statistics."""
