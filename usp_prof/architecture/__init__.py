"""Architecture of a model, read from its Hugging Face configuration into layers and blocks. Standard library only.

``blocks``   parameters and work of one block: attention, MLA, recurrences, feed-forward, mixtures ``families``
properties implied by a model type but not in its configuration (biases, norms, defaults) ``layers``   blocks of each
layer: windows, chunks, hybrids, mixtures ``reading``  the whole model: text part, layers, vocabulary, multi-token
prediction, fields that were not understood
"""

from usp_prof.architecture.fields import ArchitectureError
from usp_prof.architecture.reading import is_configuration, read

__all__ = ["ArchitectureError", "is_configuration", "read"]
