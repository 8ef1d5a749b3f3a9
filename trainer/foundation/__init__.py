"""Foundation: matrix products in fp8, and a backward that defers weight gradients."""
