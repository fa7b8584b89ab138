"""A guarantee says what it hides, from whom, and adds up only with its like."""

import dataclasses
import itertools
import math

import pytest

from jdp.guarantees import (
  ApproxDP,
  Observer,
  PureDP,
  Relation,
  SeparatedDP,
  Unit,
  common_scope,
  compose,
  rounded_down,
  rounded_up,
)

GUARANTEES = [PureDP(0.5), ApproxDP(1.0, 2**-20), SeparatedDP(8.0, 2.0)]
OTHER_SCOPES = [{"relation": "add_remove"}, {"unit": "user"}, {"observer": "model"}]


@pytest.mark.parametrize(
  ("parts", "total"),
  [
    ([PureDP(0.5)], PureDP(0.5)),
    ([PureDP(0.5), PureDP(2.0)], PureDP(2.5)),
    ([PureDP(0.5), ApproxDP(1.0, 0.25)], ApproxDP(1.5, 0.25)),
    ([ApproxDP(1.0, 0.75), ApproxDP(1.0, 0.75)], ApproxDP(2.0, 1.0)),
    ([ApproxDP(1.0, 0.0)], PureDP(1.0)),
    ([SeparatedDP(8.0, 2.0), SeparatedDP(1.0, 0.5)], SeparatedDP(9.0, 2.5)),
    ([SeparatedDP(8.0, 2.0), PureDP(1.0)], PureDP(11.0)),
    ([PureDP(math.inf), PureDP(1.0)], PureDP(math.inf)),
  ],
)
def test_compose_adds_epsilons_and_deltas(parts, total):
  assert compose(parts) == total
  assert compose(parts[::-1]) == total


@pytest.mark.parametrize("changes", OTHER_SCOPES, ids=lambda c: next(iter(c)))
@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda g: type(g).__name__)
def test_compose_keeps_a_common_scope_and_refuses_to_mix(guarantee, changes):
  restated = guarantee.restate(**changes)
  assert common_scope([compose([restated, restated])]) == common_scope([restated])
  with pytest.raises(ValueError, match="one relation, unit and observer, got"):
    compose([guarantee, restated])


def test_compose_refuses_nothing():
  with pytest.raises(ValueError, match="got none"):
    compose([])


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_repeat_is_compose_with_itself(guarantee, count):
  assert guarantee.restate(unit="user").repeat(count) == compose(
    [guarantee.restate(unit="user")] * count
  )


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("count", [-1, 2.5, math.nan])
def test_repeat_refuses_what_is_no_count(guarantee, count):
  with pytest.raises(ValueError, match="Expected count to be a whole number"):
    guarantee.repeat(count)


def test_restate_changes_the_scope_alone():
  guarantee = ApproxDP(1.0, 1e-6).restate(unit="user", observer=Observer.MODEL, relation="zero_out")
  assert guarantee == ApproxDP(
    1.0, 1e-6, unit=Unit.USER, observer=Observer.MODEL, relation=Relation.ZERO_OUT
  )
  with pytest.raises(TypeError, match="got epsilon"):
    guarantee.restate(epsilon=0.1)
  with pytest.raises(ValueError, match="household"):
    guarantee.restate(unit="household")


@pytest.mark.parametrize(
  ("guarantee", "text"),
  [
    (PureDP(2.0), "2-DP per value (replace one), against the server"),
    (PureDP(1 / 3, unit="user"), "0.333334-DP per user (replace one), against the server"),
    (
      ApproxDP(1.5, 1e-6, relation="add_remove", unit="user", observer="model"),
      "(1.5, 1e-06)-DP per user (add/remove), against whoever sees the models",
    ),
    (
      SeparatedDP(8.0, 2.0, observer="clients"),
      "(8, 2)-separated, 10-DP per value (replace one), against the clients",
    ),
  ],
)
def test_print_names_amount_unit_relation_and_observer(guarantee, text):
  assert str(guarantee) == text


@pytest.mark.parametrize(
  ("make", "name"),
  [
    (lambda x: PureDP(x), "epsilon"),
    (lambda x: ApproxDP(x, 0.1), "epsilon"),
    (lambda x: ApproxDP(1.0, x), "delta"),
    (lambda x: SeparatedDP(x, 1.0), "direction"),
    (lambda x: SeparatedDP(1.0, x), "magnitude"),
  ],
)
@pytest.mark.parametrize("bad", [-1e-300, math.nan, -math.inf])
def test_a_negative_or_undefined_amount_is_refused(make, name, bad):
  with pytest.raises(ValueError, match=f"Expected {name}"):
    make(bad)


def test_delta_above_one_is_refused():
  with pytest.raises(ValueError, match="delta in"):
    ApproxDP(1.0, 1.1)


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda g: type(g).__name__)
def test_a_guarantee_is_a_value(guarantee):
  assert hash(guarantee) == hash(dataclasses.replace(guarantee))
  with pytest.raises(dataclasses.FrozenInstanceError):
    guarantee.relation = Relation.ADD_REMOVE


def test_different_kinds_are_never_equal():
  for a, b in itertools.combinations([PureDP(1.0), ApproxDP(1.0, 0.0), SeparatedDP(1.0, 0.0)], 2):
    assert a != b


@pytest.mark.parametrize(
  "bound", [1.0000001, 2.9999994, 0.1 + 0.2, 1 / 3, 9.9999999, 12345678.0, 1e-300, 5e3]
)
@pytest.mark.parametrize("digits", [3, 6])
def test_a_printed_bound_holds(bound, digits):
  unit = 1.01 * 10 ** (1 - digits)
  assert bound * (1 - 5e-15) <= float(rounded_up(bound, digits)) <= bound * (1 + unit)
  assert bound * (1 - unit) <= float(rounded_down(bound, digits)) <= bound * (1 + 5e-15)


@pytest.mark.parametrize("number", [1.0, 0.99951, 1e-5])
def test_what_a_float_holds_is_not_taken_for_its_rounding_error(number):
  assert float(rounded_up(number * (1 + 1e-13))) > number
  assert float(rounded_down(number * (1 - 1e-13))) < number


@pytest.mark.parametrize("given", ["1e-05", "0.3", "1", "0.7", "2.5e-07", "1437"])
def test_a_number_of_few_digits_prints_as_it_was_given(given):
  assert rounded_up(float(given)) == rounded_down(float(given)) == given


@pytest.mark.parametrize("digits", [0, 16])
def test_more_digits_than_a_float_holds_are_refused(digits):
  with pytest.raises(ValueError, match=f"Expected digits from 1 to 15, got {digits}"):
    rounded_up(1.0, digits)
