"""Short forms of the fuzz, on a fixed seed: `python -m tests.faults.fuzz` is the long one."""

import pkgutil
import time

import jax
import pytest

from jdp import guarantees
from tests.faults.calls import api_calls, flag_values, outcomes, valid_calls
from tests.faults.calls.valid_calls import EXCLUDED, first_call, public_functions, valid_arguments

# Calls that were faults: privacy numbers aside, an error without the argument's name, or a hang.
FOUND = (
  ("models.from_flax", {"dtype": "a function"}),
  ("models.from_flax", {"dtype": "a number's string"}),
  ("models.from_flax", {"dtype": "None"}),
  ("models.from_flax", {"dtype": "a class"}),
  ("models.from_equinox", {"dtype": "an object"}),
  ("models.from_equinox", {"input_shape": "an empty array"}),
  ("models.validate", {"dtype": "an empty string"}),
  ("models.validate", {"input_shape": "an empty list"}),
  ("federated.dp_fedavg", {"num_rounds": "10**30"}),
  ("accounting.draw_and_discard.internal_ratios", {"scale": "a vector"}),
  ("accounting.draw_and_discard.opportunistic_threat", {"num_instances": "10**400"}),
  ("accounting.draw_and_discard.opportunistic_threat", {"delta": "1e-320"}),
  ("accounting.calibrate_rounds", {"target_epsilon": "1e308"}),
  ("audits.channels.attainable_bound", {"channel": "an array of NaN"}),
  ("queries.distributed_sum", {"clip_norm": "10**30"}),
  ("data.clients_from_pairs", {"max_examples": "10**30"}),
  ("data.clients_from_source", {"num_threads": "10**400"}),
  ("federated.per_layer_clipping", {"params": "an empty array"}),
  ("matrix_factorization.choose_strategy", {"relation": "an empty string"}),
  ("queries.correlated_integers", {"noise_multiplier": "1e308"}),
  ("accounting.draw_and_discard.published_average", {"num_instances": "10**400"}),
  ("matrix_factorization.choose_strategy", {"population": "10**400"}),
  ("federated.draw_and_discard.spread_instances", {"num_instances": "10**30"}),
  ("federated.draw_and_discard.spread_instances", {"num_instances": "2**31"}),
  ("federated.evaluate_users", {"users": "float16"}),
  ("federated.evaluate_users", {"users": "a list of strings"}),
  ("federated.evaluate_users", {"users": "an empty list"}),
  ("federated.evaluate_users", {"users": "a function"}),
  ("federated.train", {"clients": "10**30"}),
  ("federated.train", {"clients": "zero float"}),
  ("federated.train", {"clients": "a list"}),
  ("federated.train", {"clients": "an array of objects"}),
  ("federated.train", {"clients": "an empty array"}),
  ("federated.train", {"num_rounds": "uint8"}),
  ("ledger.load", {"path": "an empty string"}),
  ("ledger.load_file", {"path": "an empty string"}),
  ("ledger.DurableLedger", {"path": "an empty string"}),
  ("ledger.DurableLedger", {"prior": "None"}),
  ("ledger.DurableLedger", {"key_exposed": "an array of NaN"}),
  ("ledger.DurableLedger", {"expected": "a string"}),
  ("ledger.DurableLedger", {"run": "an object"}),
  ("ledger.DurableLedger.append", {"first_round": "None"}),
  ("ledger.Ledger.extend", {"entries": "None"}),
  ("guarantees.PureDP.repeat", {"count": "10**400"}),
  ("guarantees.ApproxDP.repeat", {"count": "10**400"}),
  ("accounting.PrivacyFilter.spent", {"ledger": "None"}),
  ("accounting.PrivacyFilter.admits", {"ledger": "a list"}),
  ("data.python_modules", {"folder": "a string"}),
  ("events.CorrelatedGaussianSum", {"max_participations": "10**400"}),
  ("accounting.group_epsilon", {"group_size": "10**400"}),
  ("audits.canaries.one_shot_estimate", {"dim": "10**400"}),
  ("audits.one_run.audit_one_run", {"confidence": "1e-320"}),
  ("data.clients_from_pairs", {"pairs": "an empty array"}),
  ("data.partition_dirichlet", {"num_users": "10**30"}),
  ("data.partition_dirichlet", {"labels": "an empty list"}),
  ("data.partition_dirichlet", {"labels": "int64"}),
  ("data.private_vocabulary", {"noise_multiplier": "1e-320"}),
  ("data.text_users", {"tokens_per_user": "10**400"}),
  ("data.text_users", {"tokens_per_user": "2**31"}),
  ("matrix_factorization.choose_strategy", {"target_epsilon": "infinity"}),
  ("models.validate", {"dtype": "a bfloat16 of JAX"}),
  ("queries.discrete_sum", {"record": "an empty array"}),
  ("sampling.min_separation", {"separation": "10**30"}),
  ("data.Vocabulary.encode", {"text": "bytes"}),
  ("data.Vocabulary.decode", {"numbers": "a list"}),
  ("data.Vocabulary.decode", {"numbers": "bytes"}),
  ("matrix_factorization.load", {"path": "an empty string"}),
  ("matrix_factorization.BandedStrategy.sensitivity", {"min_separation": "10**400"}),
  ("matrix_factorization.TreeStrategy.sensitivity", {"min_separation": "2**31"}),
  ("matrix_factorization.TreeStrategy.sensitivity", {"min_separation": "uint8"}),
  ("matrix_factorization.TreeStrategy.max_error", {"min_separation": "True"}),
  ("matrix_factorization.ToeplitzStrategy.squared_errors", {"workload": "a string"}),
  ("matrix_factorization.buffered_toeplitz", {"min_separation": "10**30"}),
  ("matrix_factorization.BufferedStrategy.max_error", {"workload": "10**400"}),
  ("audits.local_audit.audit_mechanism", {"num_samples": "2**31"}),
  ("attacks.reconstruction.principal_prior", {"inputs": "an array of NaN"}),
  ("accounting.best_split", {"norms": "a list of strings"}),
  ("data.partition_by_label", {"labels": "an array of objects"}),
  ("data.clients_from_table", {"inputs": "an empty list"}),
  ("queries.correlated_gaussian_sum", {"noise_multiplier": "1e-320"}),
  ("federated.evaluate_privately", {"noise_multiplier": "1e308"}),
)
# Factories without compiled code, where privacy numbers come from.
_QUICK = ("jdp.mechanisms", "jdp.queries", "jdp.sampling", "jdp.events", "jdp.guarantees")


def test_an_example_stops_at_its_call_and_gives_the_arguments():
  done = []

  def add(one, two=2):
    done.append(one + two)

  names = {"add": add}
  found = first_call(add.__code__, ">>> x = 1\n>>> 1 / 0\n>>> add(x)\n>>> add(7)", names)
  assert (found["one"], found["two"]) == (1, 2)
  assert first_call(add.__code__, ">>> 1 + 1", names) is None
  assert not done


def test_a_function_that_no_example_calls_is_named(monkeypatch):
  def unexampled(epsilon):
    """It shows nothing."""

  monkeypatch.setattr(valid_calls, "public_functions", lambda: {"jdp.unexampled": unexampled})
  with pytest.raises(LookupError, match=r"calls jdp\.unexampled; show a call"):
    valid_arguments("jdp.unexampled")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(public_functions()))
def test_arguments_of_every_example_are_taken(name):
  # A fuzz that begins with refused arguments would see nothing else. Calls share their keys.
  with jax.debug_key_reuse(False):
    public_functions()[name](**valid_arguments(name))


def test_excluded_functions_exist():
  for name in EXCLUDED:
    assert pkgutil.resolve_name(name)


def test_no_hostile_call_does_harm():
  _, faults = api_calls.fuzz(300, seed=19, packages=_QUICK)
  assert not faults


@pytest.mark.parametrize(("name", "replaced"), FOUND)
def test_what_a_fuzz_has_found_is_refused_or_taken(name, replaced):
  assert api_calls.call_with(f"jdp.{name}", replaced).kind in ("result", "refused")


@pytest.mark.slow
def test_no_hostile_call_of_any_package_does_harm():
  _, faults = api_calls.fuzz(600, seed=20)
  assert not faults


def test_no_hostile_flag_does_harm():
  _, faults = flag_values.fuzz(100, seed=19, experiments=("accounting", "mean_estimation"))
  assert not faults


@pytest.mark.slow
def test_no_hostile_flag_of_any_experiment_does_harm():
  _, faults = flag_values.fuzz(100, seed=20)
  assert not faults


@pytest.mark.parametrize(
  ("function", "kind"),
  [
    (lambda: 1.0, "result"),
    (lambda: float("nan"), "unsound"),
    (lambda: guarantees.PureDP(1.0), "result"),
    (lambda: {}["epsilon"], "raised"),
    (lambda: len(3), "unexplained"),
    (lambda: guarantees.PureDP("x"), "refused"),
  ],
)
def test_outcomes_are_told_apart(function, kind):
  assert api_calls.classified("call", {"epsilon"}, function).kind == kind


def test_a_hang_is_seen(monkeypatch):
  monkeypatch.setattr(outcomes, "PATIENCE", 0.05)

  def forever():
    while True:
      pass

  assert api_calls.classified("call", set(), forever).kind == "hang"


@pytest.mark.parametrize(("queued", "kind"), [(lambda: 0.0, "hang"), (time.monotonic, "result")])
def test_who_waits_is_a_hang_but_for_a_processor_that_others_use(monkeypatch, queued, kind):
  monkeypatch.setattr(outcomes, "PATIENCE", 0.5)
  monkeypatch.setattr(outcomes, "_WAITING", 1)
  monkeypatch.setattr(outcomes, "_queued", queued)
  assert api_calls.classified("call", set(), lambda: time.sleep(1)).kind == kind


@pytest.mark.parametrize(
  ("prepare", "kind"),
  [(lambda: None, "result"), (lambda: int("x"), "unexplained"), (lambda: [][0], "raised")],
)
def test_outcomes_of_flags_are_told_apart(prepare, kind):
  assert flag_values.classified("flags", prepare).kind == kind
