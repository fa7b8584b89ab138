"""Privacy loss distributions: the tight accountant, with bounds from above and from below.

| what | where |
|---|---|
| the pairs that are composed, those that data sets attain | `losses/`, `terms` |
| losses on a lattice, from above and below | `discretise` |
| where to compute: tilt, window, spacing | `aims`, `plan`, `stages` |
| composition by FFT, with its rounding errors | `compose` |
| hockey sticks, and the epsilon at a delta | `bounds`, `profile` |

**What is certified.** Each release is dominated by a pair (P, Q): at every e^eps its hockey-stick
divergence is at least that of any neighbouring data sets. Then the divergence of the pairs'
composition is at least that of the run (arXiv 2106.08567, Theorem 10). The upper bound is above the
composition's, in both directions (removal and addition), because

1. `discretise.upper` replaces a pair by a measure on a lattice whose hockey stick is above the
  pair's;
2. mass that a transform wraps around only adds, and mass above the window, bounded by Chernoff's
   inequality with the measures' own moments, is added;
3. rounding errors of distribution functions, exponentials and transforms are bounded, and added.
   This assumes that SciPy's `ndtr` at t is within a relative UNIT (8 + 2 t^2), exponentials and
   logarithms within two units in the last place, and FFTs within Higham's bound.

The lower bound is below the composition's hockey stick by the same steps with signs reversed. It is
also below the truth where data sets attain the pairs (`terms`), and is computed from those pairs
alone. Nothing in `aims` and `plan` is or needs to be certified: a bad plan gives wide bounds.

**Families.** Poisson-sampled Gaussians, fixed-size samples of Gaussians (`fixed_size`), epochs of
Gaussians in bins (`random_allocation`), discrete Gaussian and (where the bounds leave few vectors)
Skellam sums (`integer_noise`), Laplace, randomised response and pure releases have pairs. What is
known by its Renyi divergences alone (zero-concentrated releases, other Skellam sums, families of
other packages) becomes one pair, for the sum of the divergences. (epsilon, delta)-DP local releases
count as pure ones, apart from their delta.

**Sources.** Losses on lattices and FFTs: arXiv 2106.02848; connecting the dots:
2207.04380; tilting: 2208.09595; dominating pairs: 2106.08567. The lower measure (lowered dots) is
our own.
"""
