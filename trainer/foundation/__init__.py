"""Foundation: products of the layers: fp8, and a backward that leaves the gradients of weights for later."""
