"""Numerical tools that mechanisms, queries and the cohort share.

| what | where |
|---|---|
| norms, directions and clipping that no input can break | `vectors` |
| sums of many contributions that keep their sensitivity | `compensated` |
| released noise without its low-order bits | `dither` |
| the Hadamard transform, random rotations by it | `hadamard`, `rotations` |
| products of the rows of a batch | `row_products` |
| convolutions in the layout that is fast in loops | `convolutions` |
| integers modulo 2^b | `modular_arithmetic` |
"""
