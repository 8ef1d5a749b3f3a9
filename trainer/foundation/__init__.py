"""Foundation: what the trainer adds to torch: autograd hooks, a split backward, and the private parts it calls."""
