"""A simulation of secure aggregation: sums of integers modulo 2^b, opened without opening what is summed.

It follows J. H. Bell, K. A. Bonawitz, A. Gascon, T. Lepoint and M. Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead" (CCS 2020), against a server that follows the protocol. Clients sit on a circle in random
order, each a neighbour of the k/2 before and the k/2 after it. Two neighbours share a mask, which one
adds and the other subtracts; each client adds a mask of its own too. When reports are in, every client's neighbours
reveal, for those who reported, the own mask, and for those who did not, the masks shared with them: the server
subtracts both, and is left with the sum over those who reported. It never learns both of one client.

**Why a report tells nothing.** Let H be the honest clients that reported, and let the server know all else: every
mask that was revealed and all that dishonest clients know. What remains unknown to it are the masks m_e, uniform and
independent, of the pairs within H. The reports of H are x_i + (sum of +-m_e over the pairs of i) + known. If the graph
of those pairs is connected, take a spanning tree and remove it leaf by leaf: given all else, the leaf's report is
uniform, by its one edge of the tree, and independent of what is left, until one client remains whose report is fixed
by the sum of all. So the server's view is uniform on the vectors with that sum, whatever the x_i: it can be
made from the sum alone. `connected` says whether a graph is. If it is not, the sums of its components open
(two of them are seen by the server in the same way), no more. For clients lost at random, a degree of
O(log n) suffices (their Theorem 3.10). The masks are of a stream cipher in place of uniform ones: then the
view is indistinguishable by whoever cannot break ChaCha, not independent.

**What is simulated and what a deployment needs beyond it.** Here one key stands for all secrets: `mask` and `unmask`
derive any pair's mask from it. In a deployment each pair agrees on its key (Diffie-Hellman over a public-key
infrastructure that the server cannot forge); each client splits its two secrets among its neighbours with Shamir's
scheme, encrypted for each, so that `threshold` of them together reveal a secret and fewer learn nothing (here:
it is only *counted* whether enough neighbours reported); reports travel on authenticated channels; a server
that does not follow the protocol, and tells some that a client vanished and others that it did not, is met by
signatures on the list of survivors. Timing, retries, bandwidth and the choice of a random graph that the server
cannot bias are left out too.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from jdp import _validate, random
from jdp.queries.modular import reduce

_PAIR, _OWN = 0, 1  # the two purposes of the round's key


class Setup(NamedTuple):
  """The secrets of one round, all parties' in one place.

  Attributes:
    key: key from which every mask is derived.
    seats: int32 [n], each client's place on the circle, uniformly random.
  """

  key: jax.Array
  seats: jax.Array


class SecureAggregation(NamedTuple):
  """One round of the protocol, as pure functions.

  Attributes:
    setup: (key) -> `Setup`, anew for every round; takes a key of `jdp.random.secure_key`. Consumes the key.
    mask: (setup, client, integers) -> the masked report of a client, uint32 in [0, 2^b), shaped as the integers (int32
      or uint32).
    unmask: (setup, total, reported) -> (sum, recovered): from the sum of the reports modulo 2^32 or 2^b and who
      reported, bool [n], the sum of their integers, uint32 modulo 2^b (`jdp.queries.modular.centred` gives it a
      sign), and whether the secrets could be recovered. If not, the sum is zero: nothing opens.
    connected: (setup, reported) -> whether the graph of those clients is connected, on the host.
  """

  setup: Callable[[jax.Array], Setup]
  mask: Callable[[Setup, jax.Array, jax.Array], jax.Array]
  unmask: Callable[[Setup, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
  connected: Callable[[Setup, np.ndarray], bool]


def secure_aggregation(num_clients: int, degree: int, threshold: int, modulus_bits: int) -> SecureAggregation:
  """A round of secure aggregation among n clients (see the module for the protocol and what it hides).

  The unmasked sum is exact modulo 2^b. It opens if at least `threshold` of the neighbours of *every*
  client reported; a server with fewer than `threshold` dishonest neighbours of a client recovers its secrets by nobody
  but them. The cost of a report is k + 1 masks of its size.

  Args:
    num_clients: n >= 3.
    degree: k, even, in [2, n - 1].
    threshold: t in [1, k].
    modulus_bits: b in [1, 32].

  Raises:
    ValueError: if an argument is out of range.

  >>> from jdp.queries.modular import centred
  >>> protocol = secure_aggregation(num_clients=6, degree=4, threshold=2, modulus_bits=8)
  >>> setup = protocol.setup(jax.random.key(0))  # a deployment's is secret: jdp.random.secure_key()
  >>> mask = jax.jit(jax.vmap(protocol.mask, (None, 0, 0)))
  >>> reports = mask(setup, jnp.arange(6), jnp.arange(12).reshape(6, 2))
  >>> total, recovered = jax.jit(protocol.unmask)(setup, jnp.sum(reports[:4], axis=0), jnp.arange(6) < 4)
  >>> centred(total, 8).tolist(), bool(recovered)
  ([12, 16], True)
  """
  _validate.integer(3, num_clients=num_clients)
  _validate.integer(2, degree=degree)
  _validate.integer(1, threshold=threshold, modulus_bits=modulus_bits)
  if degree % 2 or degree >= num_clients or threshold > degree or modulus_bits > 32:
    raise ValueError(
      "Expected an even degree < num_clients, threshold <= degree and modulus_bits <= 32, got "
      f"degree {degree} of {num_clients} clients, threshold {threshold}, modulus_bits {modulus_bits}."
    )
  half = degree // 2
  offsets = np.arange(1, half + 1, dtype=np.int32)

  def setup(key):
    masks_key, seats_key = jax.random.split(key)
    return Setup(masks_key, jax.random.permutation(seats_key, num_clients).astype(jnp.int32))

  def pair_mask(setup, seat, offset, shape):
    """That of the clients on `seat` (who adds it) and `offset` seats further on (who subtracts it)."""
    key = jax.random.fold_in(jax.random.fold_in(setup.key, _PAIR), seat * half + offset - 1)
    return random.bits(key, shape)

  def own_mask(setup, seat, shape):
    return random.bits(jax.random.fold_in(jax.random.fold_in(setup.key, _OWN), seat), shape)

  def mask(setup, client, integers):
    seat = setup.seats[client]

    def add(total, offset):
      before = pair_mask(setup, (seat - offset) % num_clients, offset, integers.shape)
      return total + pair_mask(setup, seat, offset, integers.shape) - before, None

    own = integers.astype(jnp.uint32) + own_mask(setup, seat, integers.shape)
    return reduce(jax.lax.scan(add, own, offsets)[0], modulus_bits)

  def unmask(setup, total, reported):
    present = jnp.zeros(num_clients, bool).at[setup.seats].set(reported)
    turned = jnp.stack([jnp.roll(present, shift) for shift in (*-offsets, *offsets)])
    recovered = jnp.all(jnp.sum(turned, axis=0) >= threshold)

    def take_own(seat, total):
      return jnp.where(present[seat], total - own_mask(setup, seat, total.shape), total)

    def take_pair(index, total):
      seat, offset = index // half, index % half + 1
      first, second = present[seat], present[(seat + offset) % num_clients]

      def take(total):
        shared = pair_mask(setup, seat, offset, total.shape)
        return jnp.where(first, total - shared, total + shared)

      return jax.lax.cond(first != second, take, lambda total: total, total)

    total = jax.lax.fori_loop(0, num_clients, take_own, total.astype(jnp.uint32))
    total = jax.lax.fori_loop(0, num_clients * half, take_pair, total)
    return jnp.where(recovered, reduce(total, modulus_bits), 0), recovered

  def connected(setup, reported):
    present = np.zeros(num_clients, bool)
    present[np.asarray(setup.seats)] = np.asarray(reported)
    first = np.repeat(np.arange(num_clients), half)
    second = (first + np.tile(offsets, num_clients)) % num_clients
    kept = present[first] & present[second]
    edges = sparse.coo_array((np.ones(kept.sum()), (first[kept], second[kept])), (num_clients, num_clients))
    _, labels = sparse.csgraph.connected_components(edges, directed=False)
    return len(np.unique(labels[present])) == 1

  return SecureAggregation(setup, mask, unmask, connected)
