"""Privacy losses of single pairs: those that dominate a release, an epoch or a run of a sampler.

| the losses of | module |
|---|---|
| Gaussians, Laplace noise, responses; what is known by divergences; mixtures | `pairs` |
| a sample that released several things | `sampled` |
| samples of a fixed size | `fixed_size` |
| a replaced record, a group of records | `replaced_gaussian`, `group_gaussian` |
| epochs, from above and below | `random_allocation`, `allocated_lower` |
| runs with a cap | `capped` |
| integer sums | `integer_noise`, `integer_vectors` |
"""
