"""What the three adversaries of Draw and Discard learn (arXiv 1807.04369, Section 4).

| what | where |
|---|---|
| a statement for each adversary, beside what was published | `adversaries` |
| one user's reports, seen with the models that they started from | `one_update` |
| one report, after others have followed it | `later_updates`, on the server's clock by `lineage` |
| sums of Laplace noise | `laplace_sums` |
"""

from jdp.accounting.draw_and_discard.adversaries import (
  channel_listener,
  internal_ratios,
  internal_threat,
  opportunistic_threat,
  published_average,
  published_lemma,
)

__all__ = [
  "channel_listener",
  "internal_ratios",
  "internal_threat",
  "opportunistic_threat",
  "published_average",
  "published_lemma",
]
