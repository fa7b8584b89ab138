"""The analyses of jdp's own sampling events, registered by the call that is public.

| sampling | module |
|---|---|
| Poisson, with a cap on a record's rounds or not | `poisson` |
| truncated Poisson | `truncated` |
| of a fixed size | `fixed_size` |
| epochs: shuffled batches, balls in bins, random allocation | `epochs` |
| groups in turns: min-separation, cyclic Poisson | `groups` |
"""

from jdp.accounting.samplings import epochs, fixed_size, groups, poisson, truncated

__all__ = ["epochs", "fixed_size", "groups", "poisson", "truncated"]
