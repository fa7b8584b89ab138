"""Who takes part in a round.

A sampler draws a sample of fixed shape inside jit. The sample has `capacity` slots, and unused
slots are padded with weight 0. The sampler carries the event that the accountant needs.

The number of a sample's members may itself be private: show nothing derived from it without noise.
The number of records that a sample was drawn from is public. Code that joins a sample with data
refuses any other number of records.

| sampler | a round's members | analysed under |
|---|---|---|
| `poisson` | each record independently | add/remove, zero-out |
| `truncated_poisson` | the same; of too many, a uniform subset | add/remove, zero-out |
| `fixed_size` | a uniform subset of fixed size | zero-out, replace-one |
| `shuffled` | the next batch of a shuffled epoch | all three (1) |
| `balls_in_bins` | those that picked this round of the epoch | all three (1) |
| `random_allocation` | those with this round among their k of the epoch | all three (3) |
| `min_separation` | the next group; each in its turn, up to a cap | zero-out, replace-one (2) |
| `cyclic_poisson` | of the next group, each member independently | zero-out (2) |

(1) An epoch costs one unsampled release.
(2) For runs with correlated noise. With groups by identity (`groups_by_identity`): add/remove too.
(3) An epoch costs k unsampled releases.
"""

from jdp.sampling import registry
from jdp.sampling.allocation import random_allocation
from jdp.sampling.base import Sample, Sampler
from jdp.sampling.cyclic import cyclic_poisson, groups_by_identity, min_separation
from jdp.sampling.epochs import balls_in_bins, shuffled
from jdp.sampling.independent import poisson
from jdp.sampling.subsets import fixed_size
from jdp.sampling.truncated import truncated_poisson

__all__ = [
  "Sample",
  "Sampler",
  "balls_in_bins",
  "cyclic_poisson",
  "fixed_size",
  "groups_by_identity",
  "min_separation",
  "poisson",
  "random_allocation",
  "registry",
  "shuffled",
  "truncated_poisson",
]
