"""How is a training run recorded?  Three lines around any PyTorch loop. Public names live in `usp_prof.record`."""
