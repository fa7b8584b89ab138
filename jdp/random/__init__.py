"""Keys, and the only place that noise and coins are drawn from.

`secure_key` makes a ChaCha key from the operating system's entropy. Use it wherever a guarantee
rests on the key. JAX's default keys (threefry) are not made to resist an adversary. They suffice
for tests, data order and initial values. All draws take either. The ledger marks every release
whose noise comes from another than a secure key.
"""

from jdp.random.binding import bind, program
from jdp.random.chacha import IMPLS, SECURE_IMPLS
from jdp.random.discrete import discrete_gaussian, discrete_laplace, skellam
from jdp.random.draws import (
  bernoulli,
  bits,
  exponential,
  laplace,
  log_uniforms,
  normal,
  normal_like,
  rare_bernoulli,
  realised_probability,
)
from jdp.random.keys import (
  is_exposed,
  is_secure,
  marked,
  restore_key,
  secure_key,
  seeded_key,
)

__all__ = [
  "IMPLS",
  "SECURE_IMPLS",
  "bernoulli",
  "bind",
  "bits",
  "discrete_gaussian",
  "discrete_laplace",
  "exponential",
  "is_exposed",
  "is_secure",
  "laplace",
  "log_uniforms",
  "marked",
  "normal",
  "normal_like",
  "program",
  "rare_bernoulli",
  "realised_probability",
  "restore_key",
  "secure_key",
  "seeded_key",
  "skellam",
]
