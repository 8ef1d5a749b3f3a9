"""How do files become columns? Discovery, Kineto, manifest, cache."""
