"""Which operations on intervals and samples does everything share? Pure functions on NumPy arrays, written once."""
