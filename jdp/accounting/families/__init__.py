"""Families of dominating pairs, with all that accountants know of each.

| families | module |
|---|---|
| what all have in common | `base` |
| Gaussian releases, of samples, of bins, of groups | `gaussian` |
| Laplace and integer sums, responses, stated and unprotected releases | `releases` |
| all that one sample released, whatever it was | `samples` |
"""
