"""Amplification by sampling: the dominating pairs that a round is charged.

A sample amplifies a release only if the release looks the same whether the record sits out or is
null. Sums with noise from the records' owners do not look the same, so under every sampling they
cost what they cost unsampled. The same holds for any query whose analysis does not say that it is
central.

The statements are numbered and proved in `docs/theory/amplification.md`:

| sampling | a record is charged | statement |
|---|---|---|
| Poisson | the mixture of all that the sample released with nothing | 2.1 |
| Poisson, replace-one | two such mixtures, if it released a Gaussian | 2.11 |
| truncated Poisson | a mixture of that and a sample of fixed size | 2.2 |
| fixed size | a replacement, the same both ways; a zeroed record less | 2.3 |
| shuffled batches | one release an epoch; a replacement where a record leaves | 2.4 |
| balls in bins | one release an epoch; less where bins stay hidden, by "pld" | 2.5 |
| random allocation | k such epochs of t/k bins or so; two of three rounds if k > t/2 | 2.6 |
| groups in turns, caps | the dearest of the rounds it can be in | 2.7 |
| a cap, Gaussian sums | less, as it stays hidden which these are, by "pld" | 2.12 |
| one that the observer sees | a coin that is shown, and every round it is in | 2.8 |
| any, noise by the records' owners | what it costs unsampled | 2.9 |
"""

from functools import partial

from jdp.accounting.analysis import Release, SamplingAnalysis
from jdp.accounting.dominating_pairs import is_central, release_pairs
from jdp.accounting.families.base import KNOWN, DominatingPair, Pairs
from jdp.accounting.families.releases import NON_PRIVATE
from jdp.accounting.families.samples import is_bare, sampled_pair
from jdp.accounting.registration import charges_nothing, protects, sampling_analysis
from jdp.events import Round
from jdp.events.sampling import SamplingEvent
from jdp.guarantees import Relation


def amplified_pairs(
  event: Round, relation: Relation, *, sample_known: bool = False, certain: bool = False
) -> Pairs:
  """The pairs that a record is charged: per round, or per epoch where it has turns.

  Args:
    event: the round.
    relation: add_remove, zero_out or replace_one.
    sample_known: the observer sees who takes part (because it sees their reports). No sampling
      amplifies then.
    certain: the record takes part for certain. It is charged the pairs of the release. If the
      sampling's analysis gives more pairs than that, it is charged those as well.

  Raises:
    ValueError: if the combination of sampling, query and relation has no analysis. The message
      names combinations that have one.
  """
  sampling, analysis = event.sampling, sampling_analysis(event.sampling)
  if not protects(event.query):
    # Infinite under every relation, so the sampling's own analysis is not asked.
    return (DominatingPair(NON_PRIVATE, ()),)
  if sample_known:
    check_known(sampling, relation)
  under = partial(release_pairs, event.query, declared=event.relation)
  release = Release(under, is_central(event.query), sample_known, type(event.query).__name__)
  if analysis.charged is None:
    check_stays(sampling, relation)
  charged = (
    (relation,) if analysis.charged is None else analysis.charged(sampling, relation, release)
  )
  pairs: Pairs = ()
  for released in map(under, charged):
    if not release.is_central or is_bare(released):
      pairs += released
      continue
    found = released if sample_known else analysis.amplified(sampling, released, relation, release)
    if found == released and (sample_known or relation is not Relation.ADD_REMOVE):
      # What a sample does not hide costs what it does whoever sees the sample.
      found = _known(analysis, sampling, released)
    if certain and found:
      found = (*released, *found) if len(found) > len(released) else released
    pairs += found
  if not pairs:  # otherwise the round would be free
    raise charges_nothing(sampling, "no pair", "register_sampling")
  return pairs


def check_known(sampling: SamplingEvent, relation: Relation) -> None:
  """Refuses a relation under which an observer who sees the sample sees the record."""
  if relation is Relation.ADD_REMOVE and not sampling_analysis(sampling).takes_all(sampling):
    raise ValueError(
      "Expected relation zero_out or replace_one for an observer who sees who takes part, got "
      "add_remove: a record shows that it is there by taking part, so no epsilon holds at a delta "
      "below the probability that it ever does; pass one of them as relation, or account for the "
      "observer of the model."
    )


def check_stays(sampling: SamplingEvent, relation: Relation, what: str = "") -> None:
  """Refuses add/remove where a record that leaves may move others to other rounds."""
  if relation is Relation.ADD_REMOVE and not sampling_analysis(sampling).stays(sampling):
    grouped = hasattr(sampling, "by_identity")
    also = ", or group records by identity (jdp.sampling.groups_by_identity)" if grouped else ""
    raise ValueError(
      f"Expected relation zero_out or replace_one for {type(sampling).__name__}{what}, got "
      "add_remove: a record that leaves may change the rounds of others; pass one of them as "
      f"relation{also}."
    )


def _known(analysis: SamplingAnalysis, sampling: SamplingEvent, released: Pairs) -> Pairs:
  """The pairs of what was released from a sample that the observer sees."""
  independent = analysis.anew or analysis.fresh_coins
  q = analysis.inclusion(sampling) if analysis.inclusion and independent else 1.0
  return released if q == 1 else (sampled_pair(KNOWN, q, released),)
