"""ProjUnit: the direction of a vector in few numbers, by PrivUnit after a random projection.

Source: arXiv 2306.04444.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.local.cap_shares import log_density_constant
from jdp.accounting.local.priv_unit import MAX_DIM, Cap
from jdp.mechanisms.base import LocalMechanism, check_shape
from jdp.mechanisms.draws import projections
from jdp.mechanisms.priv_unit_l2 import priv_unit
from jdp.numerics.vectors import l2_norm


class ProjUnitReport(NamedTuple):
  """What leaves the client.

  Attributes:
    seed: the public seed of the client's own projection. It is uint32 [2], or [0] if the projection
      is shared.
    values: the report of `priv_unit` in k dimensions. It is float32 [k].
  """

  seed: jax.Array
  values: jax.Array


class ProjUnitParameters(NamedTuple):
  """The constants of `proj_unit` and `fast_proj_unit`.

  Attributes:
    num_projections: k.
    width: D. Vectors are padded to this dimension.
    c: E||W u|| of a unit vector u. Here W has k rows, orthonormal and uniformly random in R^D.
    cap: the constants of `priv_unit` in k dimensions.
  """

  num_projections: int
  width: int
  c: float
  cap: Cap


@checked
def proj_unit(
  dim: int, epsilon: float, num_projections: int, *, projection_key: jax.Array | None = None
) -> LocalMechanism:
  """Releases the direction u of a vector as k numbers: PrivUnit of a random projection of it.

  W has k orthonormal rows that span a uniformly random subspace of R^dim. The client reports z =
  PrivUnit(W u / ||W u||) in k dimensions. The estimate is W^T z / c with c = E||W u||, the mean of
  the square root of a Beta(k/2, (dim-k)/2).

  The estimate is unbiased for every u, exactly. Given W, z is unbiased, so the estimate has the
  mean F(u)/c with F(u) = E[W^T W u / ||W u||]. For every rotation Q, W Q has the distribution of W,
  so F(Q u) = Q F(u). Rotations that keep u therefore keep F(u), so F(u) is a multiple of u. The
  factor is <F(u), u> = E[||W u||^2 / ||W u||] = c.

  Its error is exactly E||W^T z / c - u||^2 = E||z||^2 / c^2 - 1, because the rows are orthonormal.
  1/c^2 is about (dim / k) (1 + 1/(2k)). With k above several times epsilon, the error is nearly
  that of `priv_unit` in R^dim. The k numbers are dithered, as `priv_unit` says, which takes a
  relative 1.1e-5 at most from the mean.

  Clients may or may not share a projection:

  * By default each client has its own. It reports a seed of 8 bytes, from which the server makes W
    again to decode.
  * With a `projection_key` all clients have the same. Reports hold nothing but k numbers. As
    `decode` is linear, the server decodes once, after it has added up the `values` of reports.

  With one projection for all, the error of W is the same in all releases and does not average out.
  For n clients with the same u, E||mean - u||^2 = (E||z||^2 - 1) / (n c^2) + (1/c^2 - 1). The last
  term is about dim/k - 1 for every n. The mean is unbiased only over the choice of W, so take a new
  key for every round. The key may be traced: then make the mechanism inside the round's function.

  Formal guarantee: that of `priv_unit(k, epsilon)`, which is `PureDP` per value, replace one (any
  two inputs), against the server. It holds for every input and every W, because projections are
  public and drawn without looking at the input. A projection without a direction counts as the
  first basis vector of R^k. (That happens to vectors that are zero, NaN, infinite, or of a norm
  outside about 1e-28 to 1e34.) A seed is drawn from a key of its own, which tells nothing of the
  noise. In floating point, what `priv_unit` says holds.

  Args:
    dim: the dimension d. At least 2.
    epsilon: the privacy loss of one release. In [1e-3, 1e4].
    num_projections: k, in [2, dim]. Making W costs dim k^2 operations. For large ones see
      `fast_proj_unit`.
    projection_key: a public key, consumed, for one projection shared by all clients.

  Returns:
    A `LocalMechanism` on float [dim] vectors in the L2 norm, with an exact `mean_squared_error`.
    Reports are `ProjUnitReport`s. `parameters` is a `ProjUnitParameters`.

  Raises:
    ValueError: if an argument is out of range.

  >>> mechanism = proj_unit(1000, 4.0, 100)
  >>> print(mechanism.guarantee)
  4-DP per value (replace one), against the server
  >>> report = mechanism.encode(jax.random.key(0), jnp.ones(1000))
  >>> report.values.nbytes + report.seed.nbytes, mechanism.decode(report).shape
  (408, (1000,))
  """
  _check(dim, num_projections)
  projection = projections.haar(dim, num_projections)
  if projection_key is not None:
    projection = projections.share(projection, projection_key)
  return _mechanism(projection, dim, dim, num_projections, epsilon)


@checked
def fast_proj_unit(
  dim: int,
  epsilon: float,
  num_projections: int,
  *,
  rotation_key: jax.Array | None = None,
  projection_key: jax.Array | None = None,
) -> LocalMechanism:
  """`proj_unit` in D log(D/k) operations, with W from two random sign flips and a transform.

  D is the least k 2^i >= dim. W = F H S acts on vectors cut into D/k blocks of k:

  * S flips signs at random.
  * H is the Hadamard transform across the blocks (of their first entries, of their second, ...).
  * F flips signs again, shifts each block around by a random amount, and adds the blocks up.

  (The paper's fast form transforms all of D, and keeps k random coordinates.) Rows of W are
  orthonormal. The estimate is W^T z / c, with c as in `proj_unit` for R^D.

  Bias: every coordinate lands in one place with a random sign, so E[W^T W] = (k/D) I exactly. Only
  the division by the length ||W u|| could bias. Let X = (D/k) ||W u||^2, and let m_r be the sum of
  u_j^2 over j = r modulo k. After H S, entries of one block never meet, and those of two blocks
  meet with probability 1/k. So, exactly,

      E X = 1,    Var X = (2/k) (1 - k/D) - (4/D) (sum_r m_r^2 - sum_j u_j^4).

  For uniformly random W, Var X is (2/k) (1 - k/D) / (1 + 2/D). The mean length E X^(1/2) is near
  1 - Var X / 8. For every u, c allows for this mean length up to a relative (sum_r m_r^2 - sum_j
  u_j^4) / (2D) <= 1/(2D), to leading order in k/D. The estimate's bias is of that order: 1e-5 of u
  at D = 2^17, far below its noise. Coordinates where u is zero have no bias. Sign flips alone, with
  k coordinates kept, would leave up to about 1/(3k), because their Var X is (2/k) (1 - sum_j u_j^4)
  (D-k)/(D-1).

  Clients may share all of a projection, its rotation S, or nothing:

  * By default each client has its own S and F. It reports a seed of 8 bytes, and the server decodes
    each report.
  * With a `rotation_key` all share S, and each has its own F. The server adds up F^T z of all
    reports and transforms once, as `privatize_sum` does. Errors of different clients are as
    independent as before. Given S, the part of the bias that all share is about sqrt(2/k) / D for
    most u. It is 1/(4k) at worst, for a u that H S puts into one block.
  * With a `projection_key` all share W. `proj_unit` states the error that then does not average
    out.

  Formal guarantee: that of `proj_unit`.

  Args:
    dim: the dimension d, at least 2. Meant for large ones, as the bias is up to 1/(2D).
    epsilon: the privacy loss of one release. In [1e-3, 1e4].
    num_projections: k. In [2, dim].
    rotation_key: a public key, consumed, for one S shared by all clients. May be traced.
    projection_key: a public key, consumed, for one W shared by all clients. May be traced.

  Returns:
    A `LocalMechanism` on float [dim] vectors in the L2 norm. Reports are `ProjUnitReport`s. Its
    `mean_squared_error` is that of a uniformly random W, which this one has up to relative terms of
    1/D. `parameters` is a `ProjUnitParameters`.

  Raises:
    ValueError: if an argument is out of range, or both keys are given.

  >>> mechanism = fast_proj_unit(10_000, 4.0, 512)
  >>> mechanism.encode(jax.random.key(0), jnp.ones(10_000)).values.shape
  (512,)
  >>> round(mechanism.mean_squared_error(1.0) / priv_unit(10_000, 4.0).mean_squared_error(1.0), 4)
  1.0022
  """
  _check(dim, num_projections)
  if rotation_key is not None and projection_key is not None:
    raise ValueError(
      "Expected at most one of rotation_key and projection_key; a shared projection has one "
      "rotation."
    )
  projection = projections.folded_hadamard(dim, num_projections, rotation_key)
  if projection_key is not None:
    projection = projections.share(projection, projection_key)
  return _mechanism(
    projection, dim, projections.padded_dim(dim, num_projections), num_projections, epsilon
  )


def _mechanism(
  projection: projections.Projection, dim: int, width: int, k: int, epsilon: float
) -> LocalMechanism:
  direction = priv_unit(k, epsilon)
  # The mean of the square root of a Beta(k/2, (D-k)/2), which is Gamma((k+1)/2) Gamma(D/2) /
  # (Gamma(k/2) Gamma((D+1)/2)).
  c = math.exp(log_density_constant(k + 1) - log_density_constant(width + 1))

  def encode(key, value):
    check_shape(value, (dim,))
    seed_key, direction_key = jax.random.split(key)
    seed = projections.draw_seed(seed_key, projection.seed_words)
    return ProjUnitReport(
      seed, direction.encode(direction_key, projection.project(seed, value.astype(jnp.float32)))
    )

  def spread(report):
    return projection.spread(report.seed, direction.decode(report.values) / c)

  def decode(report):
    return projection.finish(spread(report))

  def privatize_sum(keys, values, weights):
    # `finish` is linear, so it follows the sum.
    parts = jax.vmap(lambda key, value: spread(encode(key, value)))(keys, values)
    return projection.finish(jnp.tensordot(weights, parts, 1, precision="highest"))

  def mean_squared_error(norm: float = 1.0) -> float:
    del norm  # A direction has norm 1.
    square = direction.mean_squared_error(1.0) + 1  # E||z||^2
    # c^2 E<estimate, u>^2, as z's covariance is isotropic. The rest is spread evenly over the D - 1
    # other dimensions, of which padding holds all but dim - 1.
    along = (1 + direction.mean_squared_error(1.0) / k) * k / width
    return (along + (square - along) * (dim - 1) / (width - 1)) / c**2 - 1

  return LocalMechanism(
    encode=encode,
    decode=decode,
    privatize=lambda key, value: decode(encode(key, value)),
    guarantee=direction.guarantee,
    shape=(dim,),
    norm=l2_norm,
    max_norm=direction.max_norm / c,
    mean_squared_error=mean_squared_error,
    parameters=ProjUnitParameters(k, width, c, direction.parameters),
    privatize_sum=privatize_sum,
    # `direction` dithers the k numbers, and their images are post-processing of them.
    noise=0.0,
  )


def _check(dim: int, num_projections: int) -> None:
  _validate.in_range(2, MAX_DIM, dim=dim, num_projections=num_projections)
  if not num_projections <= dim:
    raise ValueError(f"Expected num_projections to be at most dim = {dim}, got {num_projections}.")
