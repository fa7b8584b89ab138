"""PrivUnit in about epsilon bits: the report is the number of a public candidate.

Related: arXiv 2111.00092 (minimal random coding), arXiv 2102.12099 (compression by rejection),
arXiv 2405.20782 (Poisson private representation). The construction is jdp's own, proved in
`docs/theory/compressed_reports.md`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, random
from jdp._arguments import checked
from jdp.accounting.local import compressed_priv_unit as laws
from jdp.guarantees import PureDP
from jdp.mechanisms.base import LocalMechanism, check_shape
from jdp.mechanisms.draws import candidates as draws
from jdp.numerics.vectors import l2_norm, unit

_LEAST_BITS = 5  # 2^5 candidates fill a word of labels


class IndexReport(NamedTuple):
  """What leaves the client.

  Attributes:
    seed: the public seed of the client's own turn of the candidates. It is uint16, and tells
      nothing.
    number: the number of the candidate. It is uint16 up to 16 bits, else uint32.
  """

  seed: jax.Array
  number: jax.Array


@checked
def compressed_priv_unit(
  dim: int, epsilon: float, *, table_key: jax.Array, bits: int | None = None
) -> LocalMechanism:
  """Releases the direction of a vector as `priv_unit` does, in the number of a public candidate.

  Client and server make the same N = 2^bits candidates, which are independent and uniform on the
  sphere. K of them lie in the cap {<v, u> >= gamma} around the input's direction u. The client
  sends a random number:

  * With a probability that depends on no input, the number is uniform.
  * Else a slot is drawn from a fixed number of slots, j, or from K if that is more. The slots below
    K stand for the candidates in the cap. Another slot stands for a uniform candidate outside.

  The candidate of this number has the distribution of PrivUnit with some (gamma, p), exactly: given
  its side of the cap it is uniform there, and it is in the cap with probability p over the
  candidates (Statement 9.1). The estimate V/m is unbiased, and its error is 1/m^2 - 1. (gamma, p)
  are those of least error for epsilon and bits.

  The candidates of a client are a table that all clients share, turned by signs and a shift of the
  client's own. So each report has its distribution over the choice of the table, and two reports
  are nearly but not quite independent: `experiments/benchmarks/mechanisms.py` measures what
  that adds to the error of a mean. Take a new table for every round: the key may be traced, so make
  the mechanism inside the round's function.

  Reports are shorter and slower than those of `priv_unit`. A client, or a batch of them under vmap,
  makes N dim normals, and each client takes N dim multiplications. The server makes dim normals for
  each report. The table is made in blocks of about 16 MB (or 32 candidates), and labels take N / 8
  bytes a client.

  Formal guarantee: `PureDP` per value, replace one (any two inputs), against the server, who knows
  the table and the seed. For every number and every two inputs, the probabilities differ at most by
  e^epsilon, whichever candidates are in the two caps (Statement 9.2). So what float32 does to a
  scalar product moves the distribution of a report (by about 1e-7), and costs no privacy: unlike
  `priv_unit`, nothing is added in any dimension. What 64-bit draws add is in the guarantee. An
  input without a direction (zero, NaN, infinite) is replaced by the first basis vector.

  Args:
    dim: the dimension d. In [2, 1e9].
    epsilon: the privacy loss of one release. In [1e-3, 100]. Above about 20, 30 bits are too few
      for the default.
    table_key: a public key, consumed. May be traced.
    bits: the bits of a number, from 5 to 30. By default, the fewest for which the squared error is
      at most 1.05 times that of `priv_unit` at the same epsilon.

  Returns:
    A `LocalMechanism` on float [dim] vectors in the L2 norm. Reports are `IndexReport`s.
    `parameters` is a `jdp.accounting.local.compressed_priv_unit.IndexLaw`.

  Raises:
    ValueError: if an argument is out of range, or 30 bits are too few for the default.

  >>> mechanism = compressed_priv_unit(1000, 4.0, table_key=jax.random.key(0))
  >>> print(mechanism.guarantee)
  4-DP per value (replace one), against the server
  >>> report = mechanism.encode(jax.random.key(1), jnp.ones(1000))
  >>> report.seed.nbytes + report.number.nbytes, mechanism.parameters.num_candidates
  (4, 4096)
  """
  if bits is not None:
    _validate.in_range(_LEAST_BITS, laws.MAX_BITS, bits=bits)
    _validate.integer(_LEAST_BITS, bits=bits)
  law = laws.shortest_law(dim, epsilon) if bits is None else laws.best_law(dim, epsilon, 2**bits)
  count, cap, uniform = law.num_candidates, law.cap, law.uniform
  unused = np.uint32(32 - (count.bit_length() - 1))
  dtype = np.uint16 if count <= 2**16 else np.uint32
  table = draws.candidates(table_key, dim, count, cap.gamma)
  scale = math.exp(-cap.log_m)

  def encode(key, value):
    check_shape(value, (dim,))
    seed_key, coin_key, uniform_key, slot_key, outside_key = jax.random.split(key, 5)
    seed = random.bits(seed_key) >> np.uint32(16)
    labels = table.labels(seed, unit(value))
    in_cap = draws.size(labels)
    slot = draws.below(slot_key, jnp.maximum(in_cap, law.threshold))
    inside = slot < in_cap
    outside = draws.below(outside_key, jnp.maximum(count - in_cap, 1))
    chosen = draws.nth_one(jnp.where(inside, labels, ~labels), jnp.where(inside, slot, outside))
    anywhere = random.bits(uniform_key) >> unused
    index = jnp.where(random.bernoulli(coin_key, uniform), anywhere, chosen)
    return IndexReport(seed.astype(np.uint16), index.astype(dtype))

  def decode(report):
    return scale * table.candidate(report.seed, report.number)

  def mean_squared_error(norm: float = 1.0) -> float:
    del norm  # A direction has norm 1.
    return math.expm1(-2 * cap.log_m)

  return LocalMechanism(
    encode=encode,
    decode=decode,
    privatize=lambda key, value: decode(encode(key, value)),
    # Statement 9.4: what draws of 64 bits add.
    guarantee=PureDP(law.epsilon + (1 / uniform + 2 * count) * 2.0**-64),
    shape=(dim,),
    norm=l2_norm,
    max_norm=scale,
    mean_squared_error=mean_squared_error,
    parameters=law,
    # A report is a whole number, and its bits tell what the guarantee says.
    noise=0.0,
  )
