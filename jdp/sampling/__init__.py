"""Who takes part in a round.

A sampler draws a sample of fixed shape inside jit: `capacity` slots, those that are not used padded
with weight 0. It carries the event that the accountant needs. How many members a sample has may
itself be private: nothing derived from it may be shown un-noised. Of how many records it was drawn
is public, and whoever joins it with data refuses another number of records.

| sampler | a round's members | analysed under |
|---|---|---|
| `poisson` | each record independently | add/remove, zero-out |
| `fixed_size` | a uniform subset of fixed size | replace-one |
| `shuffled` | the next batch of a shuffled epoch | all three; an epoch costs one unsampled release |
| `balls_in_bins` | those that picked this round of the epoch | all three; an epoch costs one unsampled release |
"""

from jdp.sampling.base import Sample, Sampler
from jdp.sampling.epochs import EpochState, balls_in_bins, shuffled
from jdp.sampling.independent import poisson
from jdp.sampling.subsets import fixed_size

__all__ = ["EpochState", "Sample", "Sampler", "balls_in_bins", "fixed_size", "poisson", "shuffled"]
