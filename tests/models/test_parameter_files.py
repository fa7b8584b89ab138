"""Parameters as a file: bit for bit, and nothing but those of the model."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import data, models
from jdp.federated import dp_sgd, train

PARAMS = {
  "layer": {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.float32(-0.0)},
  "half": [jnp.array([1.5, -2.0], jnp.bfloat16), jnp.array([0.1], jnp.float16)],
}


def test_parameters_come_back_bit_for_bit(tmp_path):
  models.save_params(tmp_path / "params.npz", PARAMS)
  for like in (PARAMS, jax.eval_shape(lambda: PARAMS)):
    found = models.load_params(tmp_path / "params.npz", like)
    assert jax.tree.structure(found) == jax.tree.structure(PARAMS)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(PARAMS), strict=True):
      assert one.dtype == other.dtype
      assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize(
  "like",
  [
    {**PARAMS, "layer": {"w": jnp.zeros((3, 2)), "b": jnp.float32(0)}},
    {**PARAMS, "layer": {"w": jnp.zeros((2, 3), jnp.int32), "b": jnp.float32(0)}},
    {"layer": PARAMS["layer"]},
    {**PARAMS, "more": jnp.zeros(1)},
  ],
)
def test_another_models_parameters_are_refused(tmp_path, like):
  models.save_params(tmp_path / "params.npz", PARAMS)
  with pytest.raises(ValueError, match=r"Expected parameters .* name a run of the same model"):
    models.load_params(tmp_path / "params.npz", like)


@pytest.mark.slow
def test_a_finished_run_keeps_its_model(tmp_path, key):
  examples = data.examples(np.ones((40, 3)), np.arange(40) % 2)
  model = models.logistic_regression((3,), 2)
  algorithm = dp_sgd(
    models.cross_entropy(model), examples, batch_size=10, clip_norm=1.0, num_rounds=4,
    noise_multiplier=1.0, optimizer=optax.sgd(0.1),
  )  # fmt: skip
  result = train(algorithm, model.init(key), examples, workdir=tmp_path / "run")
  found = models.load_params(tmp_path / "run/params.npz", jax.eval_shape(model.init, key))
  jax.tree.map(np.testing.assert_array_equal, found, result.params)
