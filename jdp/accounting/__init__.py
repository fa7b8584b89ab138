"""What a run cost: epsilon and delta of a ledger, and the closed forms that mechanisms state their guarantees with.

| what | where |
|---|---|
| from a ledger to epsilon and back | `accountant`, `calibration`, `local` (a unit's local releases) |
| from events to losses: queries, then samples | `losses`, `releases`, `samples`, `loss_kinds` |
| what float noise on a grid may add | `float_noise` |
| from losses to epsilon | `profiles` (RDP, moments), `conversions`, `loss_distributions` (PLD), `analytic_gaussian` |
| Renyi divergences | `rdp` (Poisson samples), `rdp_fixed_size`, `rdp_closed`, `binomial` |
| other packages' events; shuffled reports | `dp_events`; `shuffling` |
| constants of local mechanisms | `cap` (PrivUnit), `gaussian_cap` (PrivUnitG), `cube` (L-infinity), `scalar`, `split` |
| adversaries of Draw and Discard | `draw_and_discard`, `local_updates`, `lineage`, `later_updates`, `laplace_sums` |
"""

from jdp.accounting.accountant import delta, epsilon
from jdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon, gaussian_noise_multiplier
from jdp.accounting.calibration import (
  calibrate_clip_norm,
  calibrate_cohort,
  calibrate_noise,
  calibrate_noise_multiplier,
  calibrate_rounds,
  calibrate_sampling_probability,
)
from jdp.accounting.dp_events import from_dp_event, to_dp_event
from jdp.accounting.float_noise import grid_surcharge
from jdp.accounting.local import local_guarantee
from jdp.accounting.rdp import rdp_subsampled_gaussian
from jdp.accounting.releases import noise_multiplier, register_analysis
from jdp.accounting.shuffling import largest_local_epsilon, shuffled_delta, shuffled_epsilon
from jdp.accounting.split import best_split

__all__ = [
  "best_split",
  "calibrate_clip_norm",
  "calibrate_cohort",
  "calibrate_noise",
  "calibrate_noise_multiplier",
  "calibrate_rounds",
  "calibrate_sampling_probability",
  "delta",
  "epsilon",
  "from_dp_event",
  "gaussian_delta",
  "gaussian_epsilon",
  "gaussian_noise_multiplier",
  "grid_surcharge",
  "largest_local_epsilon",
  "local_guarantee",
  "noise_multiplier",
  "rdp_subsampled_gaussian",
  "register_analysis",
  "shuffled_delta",
  "shuffled_epsilon",
  "to_dp_event",
]
