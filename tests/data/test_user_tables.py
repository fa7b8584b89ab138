"""Users from arrays, pairs and tables: the same users, whatever they come in."""

import jax
import numpy as np
import pandas as pd
import pytest

from jdp import data

INPUTS = np.arange(10.0).reshape(5, 2)
LABELS, USERS = np.array([0, 1, 2, 1, 0]), np.array(["bo", "al", "bo", "cy", "bo"])
TABLE = {"who": USERS, "label": LABELS, "a": INPUTS[:, 0], "b": INPUTS[:, 1], "rows": list(INPUTS)}


def of_table(table, inputs):
  return data.clients_from_table(table, user="who", label="label", inputs=inputs)


@pytest.mark.parametrize(
  "make",
  [
    lambda: data.clients_from_arrays(INPUTS, LABELS, USERS),
    lambda: data.clients_from_pairs((INPUTS[at], LABELS[at]) for at in ([1], [0, 2, 4], [3])),
    lambda: of_table(TABLE, ["a", "b"]),
    lambda: of_table(TABLE, "rows"),
    lambda: of_table(pd.DataFrame(TABLE), ["a", "b"]),
    lambda: of_table(pd.DataFrame(TABLE), "rows"),
  ],
)
def test_each_user_has_its_examples(make):
  clients = make()
  assert clients.counts.tolist() == [1, 3, 1]
  for number, name in enumerate(("al", "bo", "cy")):
    user = clients.user(number)
    count = clients.counts[number]
    np.testing.assert_array_equal(user.inputs[:count], INPUTS[name == USERS])
    np.testing.assert_array_equal(user.labels[:count], LABELS[name == USERS])
    assert user.mask.tolist() == [1.0] * count + [0.0] * (3 - count)


def test_forms_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match="a user for each of 5 examples"):
    data.clients_from_arrays(INPUTS, LABELS, USERS[:4])
  with pytest.raises(ValueError, match="as many inputs as labels"):
    data.clients_from_arrays(INPUTS, LABELS[:4], USERS[:4])
  with pytest.raises(ValueError, match="column 'name'"):
    data.clients_from_table(TABLE, user="name", label="label", inputs="rows")
  with pytest.raises(ValueError, match="at least one user"):
    data.clients_from_pairs([])
  with pytest.raises(ValueError, match="0 to 1"):
    data.clients_from_arrays(INPUTS, LABELS, USERS, num_classes=2)


def test_users_without_examples_are_users_and_change_no_type():
  rows = [(INPUTS[:2], [0, 1]), ([], []), (INPUTS[2:3], [1])]
  clients = data.clients_from_pairs(rows, label_kind="numbers")
  assert clients.counts.tolist() == [2, 0, 1]
  assert clients.examples.labels.dtype == np.int32
  assert not clients.user(1).mask.any()
  assert not clients.user(1).inputs.any()


NO_ROWS = {name: column[:0] for name, column in TABLE.items()}


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: data.clients_from_pairs([([], []), (INPUTS[:0], [])]), "one user with an example"),
    (lambda: data.clients_from_pairs([(INPUTS, LABELS), (INPUTS[:, :1], LABELS)]), "of one shape"),
    (lambda: data.clients_from_arrays(INPUTS[:0], [], []), "one example, got inputs without rows"),
    (lambda: data.clients_from_arrays([], [], []), "one example, got inputs without rows"),
    (lambda: of_table(NO_ROWS, "rows"), "got no rows"),
    (lambda: of_table(pd.DataFrame(NO_ROWS), ["a", "b"]), "got no rows"),
    (lambda: of_table(TABLE, []), "one column in inputs"),
    (lambda: data.partition_by_group(np.array([])), "group of at least one example"),
  ],
)
def test_what_has_no_rows_is_refused_as_such(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_dirichlet_users_hold_every_example_once_and_few_labels_where_it_is_concentrated():
  labels = np.repeat(np.arange(10), 200)
  spread = {}
  for concentration in (0.01, 100.0):
    users = data.partition_dirichlet(np.random.default_rng(0), labels, 20, concentration)
    assert sorted(np.concatenate(users).tolist()) == list(range(2000))
    spread[concentration] = np.mean([len(np.unique(labels[user])) for user in users])
  assert spread[0.01] < 4
  assert spread[100.0] == 10


def test_a_packed_user_is_a_pytree_of_rows():
  assert all(len(x) for x in jax.tree.leaves(data.clients_from_arrays(INPUTS, LABELS, USERS)))
