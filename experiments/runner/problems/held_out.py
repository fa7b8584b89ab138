"""Users or examples that are held out to choose settings by, and that nobody trains on."""

from collections.abc import Sequence

import numpy as np

from jdp.sampling import groups_by_identity

_COIN_SIDES = 2**30


def held_out(names: Sequence[str], share: float, seed: int) -> np.ndarray:
  """bool [n]: which of n names are held out, about a share of them.

  Each has a coin of its own, on which nobody else's depends.

  Raises:
    ValueError: if none is held out, or all are.

  >>> held_out(["ann", "bob", "eve", "joe"], 0.5, 1).tolist()
  [True, False, True, False]
  """
  coins = groups_by_identity((f"held out/{seed}/{name}" for name in names), _COIN_SIDES)
  chosen = coins < share * _COIN_SIDES
  if chosen.all() or not chosen.any():
    raise ValueError(
      f"Expected --validation_share to hold out some of {len(names)} and to leave some, got "
      f"{share:g}, which holds out {chosen.sum()}."
    )
  return chosen
