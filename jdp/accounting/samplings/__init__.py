"""The analyses of jdp's own sampling events, registered by the call that is public.

| sampling | module |
|---|---|
| Poisson, with a cap on a record's rounds or not; min-separation, cyclic Poisson | `poisson` |
| of a fixed size, truncated Poisson | `sizes` |
| epochs: shuffled batches, balls in bins, random allocation | `epochs` |
"""

# They register their analyses.
from jdp.accounting.samplings import epochs, poisson, sizes  # noqa: F401
