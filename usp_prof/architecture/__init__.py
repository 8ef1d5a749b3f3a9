"""A model's architecture, read from its Hugging Face configuration into layers and their blocks. Standard library only.

``blocks``   what one block holds and costs: attention, MLA, recurrences, feed-forward, mixtures
``families`` what a model type implies that its configuration does not say (biases, norms, defaults)
``layers``   which block each layer has: windows, chunks, hybrids, mixtures
``reading``  the whole: text part, layers, vocabulary, multi-token prediction, fields that were not understood
"""

from usp_prof.architecture.fields import ArchitectureError
from usp_prof.architecture.reading import is_configuration, read

__all__ = ["ArchitectureError", "is_configuration", "read"]
