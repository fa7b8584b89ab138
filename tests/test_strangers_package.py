"""A package from outside jdp: its parts are sampled, amplified, trained with and audited."""

import importlib
import pathlib
import sys

import jax
import numpy as np
import optax
import pytest

from jdp import accounting, conformance, data, ledger, models, random
from jdp.command_line import main
from jdp.data.packed import pack
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated import federated_averaging, local_sgd, train

PACKAGE = "tests.helpers.strangers_package"


@pytest.fixture
def package(undone, monkeypatch):
  """The package, imported as if for the first time."""
  monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
  yield importlib.import_module(PACKAGE)
  sys.modules.pop(PACKAGE)


def test_it_is_short_and_nothing_is_left_unaudited(package):
  assert pathlib.Path(package.__file__).read_text().count("\n") < 110
  assert conformance.unaudited(package) == []


def test_a_run_costs_what_the_closed_form_says(package):
  sampler, count = package.two_coins(100, 0.3), 50
  drawn = sampler.event(sampler.init())
  run = ledger.Ledger().append(Round(drawn, package.ScaledSum(1.5, 3.0)), count=count)
  known = PoissonSampling(drawn.probability, drawn.overflow_probability, 100)
  plain = ledger.Ledger().append(Round(known, GaussianSum(1.0, 1.5)), count=count)
  assert accounting.epsilon_interval(run, 1e-5) == accounting.epsilon_interval(plain, 1e-5)
  orders = np.arange(1.5, 60.0, 0.01)
  rdp = count * accounting.rdp_subsampled_gaussian(drawn.probability, 1.5, orders)
  least = np.min(rdp + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1))
  assert accounting.epsilon(run, 1e-5, accountant="rdp") == pytest.approx(least, rel=1e-3)


@pytest.mark.slow
def test_it_is_trained_with(package):
  rng = np.random.default_rng(0)
  examples = data.examples(rng.normal(size=(80, 3)), rng.integers(0, 2, 80))
  clients = pack(examples, np.split(np.arange(80), 8))
  model = models.logistic_regression((3,), 2)
  algorithm = federated_averaging(
    local_sgd(models.cross_entropy(model), 0.5, num_epochs=1, batch_size=10),
    package.scaled_sum(2.0, 0.25),
    package.two_coins(8, 0.7),
    optax.sgd(0.1),
  )
  key = random.secure_key()
  params = model.init(jax.random.key(2))
  result = train(algorithm, params, clients, num_rounds=3, noise_key=key, delta=1e-5)
  assert [type(event.query) for event, _ in result.ledger.entries] == [package.ScaledSum]
  (event,) = {event for event, _ in result.ledger.entries}
  known = PoissonSampling(event.sampling.probability, event.sampling.overflow_probability, 8)
  plain = ledger.Ledger().append(Round(known, GaussianSum(1.0, 2.0)), count=3)
  assert accounting.epsilon(result.ledger, 1e-5) == accounting.epsilon(plain, 1e-5)
  assert not result.ledger.caveats


@pytest.mark.slow
def test_it_is_audited_by_name(package, capsys):
  command = f"audit negated_laplace scaled_sum --import={PACKAGE} --samples 4000"
  assert main(command.split()) == 0
  assert "scaled_sum, zero_out" in capsys.readouterr().out
