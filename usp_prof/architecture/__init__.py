"""Architecture of a model, read from its Hugging Face configuration into layers and blocks. Standard library only.

- ``blocks``: parameters and FLOPs of one block (attention, MLA, recurrence, feed-forward, mixture of experts)
- ``families``: properties implied by a model type but absent from its configuration (biases, norms, defaults)
- ``layers``: the blocks of each layer (windows, chunks, hybrids, mixtures of experts)
- ``reading``: the whole model (text part, layers, vocabulary, multi-token prediction, unknown fields)
"""

from usp_prof.architecture.fields import ArchitectureError
from usp_prof.architecture.reading import is_configuration, read

__all__ = ["ArchitectureError", "is_configuration", "read"]
