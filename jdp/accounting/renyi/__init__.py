"""Renyi divergences of dominating pairs, and what they say about epsilon.

| what | where |
|---|---|
| Gaussian sums of Poisson samples (the moments accountant's) | `poisson_gaussian` |
| Gaussian sums of samples of a fixed size, of truncated ones | `fixed_size_gaussian` |
| pure differential privacy, randomised response, Laplace noise, zCDP | `closed_forms` |
| discrete Gaussian and Skellam noise | `discrete_noise` |
| the best of a random number of runs | `repeated_runs` |
| from an order's divergence to epsilon or delta | `conversions` |
| sums over the terms of binomials | `binomial_sums` |
"""
