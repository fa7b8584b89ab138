"""Keys, and the only place that noise and coins are drawn from.

`secure_key` makes a ChaCha key from the operating system's entropy. Use it wherever a guarantee
rests on the key. JAX's default keys (threefry) are not made to resist an adversary. They suffice
for tests, data order and initial values. All draws take either. The ledger marks every release
whose noise comes from a key that is not secure.
"""

from jdp.random.discrete import discrete_gaussian, skellam
from jdp.random.draws import bernoulli, bits, laplace, normal
from jdp.random.keys import marked, restore_key, secure_key, seeded_key

__all__ = [
  "bernoulli",
  "bits",
  "discrete_gaussian",
  "laplace",
  "marked",
  "normal",
  "restore_key",
  "secure_key",
  "seeded_key",
  "skellam",
]
