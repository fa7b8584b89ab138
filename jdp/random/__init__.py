"""Keys, and the one place that noise and coins are drawn from.

`secure_key` makes a ChaCha key from the operating system's entropy, for all that a guarantee rests
on; JAX's default keys (threefry, not made to resist an adversary) do for tests, data order and
initial values. The draws take either. What is released with noise of any key but a secure one is
marked so in the ledger.
"""

from jdp.random.chacha import IMPLS, SECURE_IMPLS
from jdp.random.discrete import discrete_gaussian, discrete_laplace, skellam
from jdp.random.draws import (
  bernoulli,
  bits,
  exponential,
  laplace,
  log_uniforms,
  normal,
  rare_bernoulli,
  realised_probability,
)
from jdp.random.keys import is_exposed, is_secure, restore_key, secure_key, seeded_key

__all__ = [
  "IMPLS",
  "SECURE_IMPLS",
  "bernoulli",
  "bits",
  "discrete_gaussian",
  "discrete_laplace",
  "exponential",
  "is_exposed",
  "is_secure",
  "laplace",
  "log_uniforms",
  "normal",
  "rare_bernoulli",
  "realised_probability",
  "restore_key",
  "secure_key",
  "seeded_key",
  "skellam",
]
