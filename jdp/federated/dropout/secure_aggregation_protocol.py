"""A simulation of secure aggregation: sums modulo 2^b, opened without opening what is summed.

It follows J. H. Bell, K. A. Bonawitz, A. Gascon, T. Lepoint and M. Raykova, "Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead" (CCS 2020), against a server that follows the protocol.
Clients sit on a circle in random order. Each is a neighbour of the k/2 before and the k/2 after it.
Two neighbours share a mask, which one adds and the other subtracts. Each client also adds a mask of
its own.

When reports are in, every client's neighbours reveal masks to the server. They reveal the own mask
of a client that reported. They reveal the masks shared with a client that did not. The server
subtracts both, and is left with the sum over those who reported. It never learns both kinds of
masks of one client.

Survivors may be asked again, to calibrate noise. Then a round has several stages and still opens
once. What a client sends at a later stage is masked as its report was, by masks of that stage. It
also takes off its own mask of the stage before. So only the own mask of the *last* stage that a
client answered is ever revealed. The sum of the reports alone keeps the own masks of all who
answered later.

**Why a report tells nothing.** Let H be the honest clients that reported. Let the server know the
rest: every mask that was revealed, and all that dishonest clients know. The masks m_e of the pairs
within H remain unknown to it. They are uniform and independent. The reports of H are x_i + (sum of
+-m_e over the pairs of i) + known.

If the graph of those pairs is connected, take a spanning tree and remove it leaf by leaf. Given
everything else, the leaf's report is uniform, because of its one edge in the tree. It is also
independent of the remaining reports. In the end one client remains, and the sum fixes its report.
So the server's view is uniform on the vectors with that sum, whatever the x_i. It can be made from
the sum alone.

With several stages this holds for each stage, given the own masks of the stage before. Those are
uniform themselves as long as one honest client answers later. So only the sum over all stages is
left.

`connected` says whether a graph is connected. If it is not, the sums of its components open, and
nothing more (the server sees two components in the same way). A sum that is to carry everybody's
noise must not be opened then. For clients lost at random, a degree of O(log n) suffices (their
Theorem 3.10). The masks come from a stream cipher in place of uniform ones. So the view is not
independent, but indistinguishable by whoever cannot break ChaCha.

**What is simulated.** One key stands for all secrets here: `mask` and `unmask` derive any pair's
mask from it. Whether enough neighbours reported is only *counted*.

**What a deployment needs beyond it.**

* Each pair agrees on its key, by Diffie-Hellman over a public-key infrastructure that the server
  cannot forge.
* Each stage has another key. Otherwise the secrets revealed of a client that vanished before the
  second stage would open its report at the first.
* Each client splits its two secrets of a stage among its neighbours with Shamir's scheme, encrypted
  for each. Then `threshold` of them together reveal a secret, and fewer learn nothing.
* Reports travel on authenticated channels.
* Survivors are listed, and the list is signed. This meets a server that does not follow the
  protocol, and tells some that a client vanished and others that it did not.

The simulation also omits timing, retries, bandwidth and the choice of a random graph that the
server cannot bias.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jdp import _validate, random
from jdp._arguments import checked
from jdp.numerics.modular_arithmetic import reduce

_PAIR, _OWN = 0, 1  # the two purposes of the round's key


class Setup(NamedTuple):
  """The secrets of one round, those of all parties in one place.

  Attributes:
    key: key from which every mask is derived.
    seats: int32 [n]. Each client's place on the circle, uniformly random.
  """

  key: jax.Array
  seats: jax.Array


class SecureAggregation(NamedTuple):
  """One round of the protocol, as pure functions.

  Attributes:
    setup: (key) -> `Setup`, a new one for every round. Takes a key of `jdp.random.secure_key`.
      Consumes the key.
    mask: (setup, client, integers, stage=0) -> the masked report of a client. It is uint32 in [0,
      2^b), shaped as the integers (int32 or uint32).
    unmask: (setup, total, present) -> (sum, recovered). `total` is the sum of all that arrived
      modulo 2^32 or 2^b. `present` says who answered at each stage, bool [stages, n]. A client that
      misses a stage does not come back. The result is the sum of their integers, uint32 modulo 2^b
      (`jdp.numerics.modular_arithmetic.centred` gives it a sign). `recovered` says whether the
      secrets could be recovered. If not, the sum is zero and nothing opens.
    connected: (setup, reported) -> whether the graph of those clients is connected. `reported` is
      bool [n], on the host.
    modulus_bits: b. Sums are modulo 2^b.
  """

  setup: Callable[[jax.Array], Setup]
  mask: Callable[..., jax.Array]
  unmask: Callable[[Setup, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
  connected: Callable[[Setup, np.ndarray], bool]
  modulus_bits: int


@checked
def secure_aggregation(
  num_clients: int, degree: int, threshold: int, modulus_bits: int
) -> SecureAggregation:
  """A round of secure aggregation among n clients.

  The module describes the protocol and what it hides. The unmasked sum is exact modulo 2^b. It
  opens if at least `threshold` of the neighbours of *every* client answered at the last stage. With
  fewer than `threshold` dishonest neighbours of a client, a server cannot recover its secrets from
  those alone. The cost of a report is k + 1 masks of its size, and of a later stage k + 2.

  Args:
    num_clients: n >= 3. The number of clients.
    degree: k. An even number in [2, n - 1]. The number of a client's neighbours.
    threshold: t in [1, k]. The neighbours that must answer.
    modulus_bits: b in [1, 32].

  Raises:
    ValueError: if an argument is out of range.

  >>> from jdp.numerics.modular_arithmetic import centred
  >>> protocol = secure_aggregation(num_clients=6, degree=4, threshold=2, modulus_bits=8)
  >>> setup = protocol.setup(jax.random.key(0))  # a deployment's is secret: jdp.random.secure_key()
  >>> mask = jax.jit(jax.vmap(protocol.mask, (None, 0, 0)))
  >>> reports = mask(setup, jnp.arange(6), jnp.arange(12).reshape(6, 2))
  >>> total, recovered = jax.jit(protocol.unmask)(
  ...   setup, jnp.sum(reports[:4], axis=0), jnp.arange(6)[None] < 4
  ... )
  >>> centred(total, 8).tolist(), bool(recovered)
  ([12, 16], True)
  """
  _validate.integer(3, num_clients=num_clients)
  _validate.integer(2, degree=degree)
  _validate.integer(1, threshold=threshold, modulus_bits=modulus_bits)
  if degree % 2 or degree >= num_clients or threshold > degree or modulus_bits > 32:
    raise ValueError(
      "Expected an even degree < num_clients, threshold <= degree and modulus_bits <= 32, got "
      f"degree {degree} of {num_clients} clients, threshold {threshold}, modulus_bits "
      f"{modulus_bits}."
    )
  half = degree // 2
  offsets = np.arange(1, half + 1, dtype=np.int32)

  def setup(key):
    masks_key, seats_key = jax.random.split(key)
    return Setup(masks_key, jax.random.permutation(seats_key, num_clients).astype(jnp.int32))

  def drawn(setup, stage, purpose, index, shape):
    key = jax.random.fold_in(jax.random.fold_in(setup.key, stage), purpose)
    return random.bits(jax.random.fold_in(key, index), shape)

  def pair_mask(setup, stage, seat, offset, shape):
    # The client on `seat` adds it, and the client `offset` seats further on subtracts it.
    return drawn(setup, stage, _PAIR, seat * half + offset - 1, shape)

  def mask(setup, client, integers, stage=0):
    seat = setup.seats[client]

    def add(total, offset):
      before = pair_mask(setup, stage, (seat - offset) % num_clients, offset, integers.shape)
      return total + pair_mask(setup, stage, seat, offset, integers.shape) - before, None

    own = integers.astype(jnp.uint32) + drawn(setup, stage, _OWN, seat, integers.shape)
    # The own mask of the stage before comes off, so that only the last one is left in the sum.
    if stage:
      own -= drawn(setup, stage - 1, _OWN, seat, integers.shape)
    return reduce(jax.lax.scan(add, own, offsets)[0], modulus_bits)

  def unmask(setup, total, present):
    seated = jnp.zeros(present.shape, bool).at[:, setup.seats].set(present)
    # The stage whose own mask is left, or -1 for none.
    last = jnp.sum(seated, axis=0, dtype=jnp.int32) - 1
    turned = jnp.stack([jnp.roll(seated[-1], shift) for shift in (*-offsets, *offsets)])
    recovered = jnp.all(jnp.sum(turned, axis=0) >= threshold)

    # The sum telescopes over the stages, so one own mask of each client is left.
    def take_own(seat, total):
      own = drawn(setup, jnp.maximum(last[seat], 0), _OWN, seat, total.shape)
      return jnp.where(last[seat] >= 0, total - own, total)

    def take_pair(number, total):
      stage, index = number // (num_clients * half), number % (num_clients * half)
      seat, offset = index // half, index % half + 1
      first, second = seated[stage, seat], seated[stage, (seat + offset) % num_clients]

      def take(total):
        shared = pair_mask(setup, stage, seat, offset, total.shape)
        return jnp.where(first, total - shared, total + shared)

      # If both answered, or neither did, the pair's mask has cancelled or never arrived.
      return jax.lax.cond(first != second, take, lambda total: total, total)

    total = jax.lax.fori_loop(0, num_clients, take_own, total.astype(jnp.uint32))
    total = jax.lax.fori_loop(0, len(present) * num_clients * half, take_pair, total)
    return jnp.where(recovered, reduce(total, modulus_bits), 0), recovered

  def connected(setup, reported):
    present = np.zeros(num_clients, bool)
    present[np.asarray(setup.seats)] = np.asarray(reported)
    first = np.repeat(np.arange(num_clients), half)
    second = (first + np.tile(offsets, num_clients)) % num_clients
    kept = present[first] & present[second]
    edges = scipy.sparse.coo_array(
      (np.ones(kept.sum()), (first[kept], second[kept])), (num_clients, num_clients)
    )
    _, labels = scipy.sparse.csgraph.connected_components(edges, directed=False)
    return len(np.unique(labels[present])) == 1

  return SecureAggregation(setup, mask, unmask, connected, modulus_bits)
