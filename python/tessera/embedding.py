"""How lookups in sharded tables are carried out.

torch.nn.Embedding and torch.nn.EmbeddingBag work on distributed tables as they
are. What is here is what they have no argument for.
"""

from tessera._C import EmbeddingScope, MaskBuffer, prefer_huge_pages

__all__ = ["EmbeddingScope", "MaskBuffer", "prefer_huge_pages"]

for _class in (EmbeddingScope, MaskBuffer):
    _class.__module__ = __name__
