"""Privacy accounting: the epsilon and delta of a ledger, and closed forms of mechanisms'
guarantees.

| subject | module |
|---|---|
| from a ledger to epsilon and delta, and back | `accountant`, `calibration` |
| what accounting knows of an event, and where it is registered | `analysis`, `registration` |
| jdp's own events, with what they cost and what sampling does | `queries/`, `samplings/` |
| the pair of distributions that dominates a release | `dominating_pairs`, `families/` |
| amplification by sampling | `amplification` |
| the events that an observer saw, composed with its local releases | `seen`, `observed` |
| composition of rounds, of a unit's local releases | `composed_rounds`, `composition` |
| from a composition to epsilon and delta | `profiles`, by `renyi/` or `pld/` |
| one Gaussian release, exactly | `analytic_gaussian` |
| the extra cost of float noise on a grid | `float_noise` |
| closed forms of local mechanisms; shuffled reports; reconstruction | `local/` |
| the adversaries of Draw and Discard | `draw_and_discard/` |
| the statement in words, budgets, filters, groups, an attacker's gain | `statements/` |
| events of other packages | `dp_events` |
"""

from jdp.accounting import queries, samplings  # noqa: F401  # they register their analyses
from jdp.accounting.accountant import ACCOUNTANTS, delta, epsilon, epsilon_interval
from jdp.accounting.analysis import Attained, QueryAnalysis, SamplingAnalysis, Turns
from jdp.accounting.analytic_gaussian import gaussian_epsilon, gaussian_noise_multiplier
from jdp.accounting.calibration import (
  calibrate_cohort,
  calibrate_noise,
  calibrate_noise_multiplier,
  calibrate_rounds,
  calibrate_sampling_probability,
)
from jdp.accounting.composition import local_guarantee
from jdp.accounting.dominating_pairs import noise_multiplier
from jdp.accounting.dp_events import from_dp_event, to_dp_event
from jdp.accounting.float_noise import grid_surcharge
from jdp.accounting.local.separated import best_split
from jdp.accounting.local.shuffling import shuffled_delta, shuffled_epsilon
from jdp.accounting.queries.best_of_runs import best_of_runs, selection_epsilon
from jdp.accounting.registration import (
  charge_as,
  register_query,
  register_sampling,
  sampling_analysis,
)
from jdp.accounting.renyi.poisson_gaussian import rdp_subsampled_gaussian
from jdp.accounting.statements.filters import gaussian_filter, odometer, renyi_filter, would_exceed
from jdp.accounting.statements.group_privacy import group_epsilon
from jdp.accounting.statements.privacy_statements import privacy_statements, why_unbounded
from jdp.accounting.statements.trade_off_curves import attacker_gain, trade_off

__all__ = [
  "ACCOUNTANTS",
  "Attained",
  "QueryAnalysis",
  "SamplingAnalysis",
  "Turns",
  "attacker_gain",
  "best_of_runs",
  "best_split",
  "calibrate_cohort",
  "calibrate_noise",
  "calibrate_noise_multiplier",
  "calibrate_rounds",
  "calibrate_sampling_probability",
  "charge_as",
  "delta",
  "epsilon",
  "epsilon_interval",
  "from_dp_event",
  "gaussian_epsilon",
  "gaussian_filter",
  "gaussian_noise_multiplier",
  "grid_surcharge",
  "group_epsilon",
  "local_guarantee",
  "noise_multiplier",
  "odometer",
  "privacy_statements",
  "rdp_subsampled_gaussian",
  "register_query",
  "register_sampling",
  "renyi_filter",
  "sampling_analysis",
  "selection_epsilon",
  "shuffled_delta",
  "shuffled_epsilon",
  "to_dp_event",
  "trade_off",
  "why_unbounded",
  "would_exceed",
]
