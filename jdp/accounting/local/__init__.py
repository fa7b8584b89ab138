"""Closed forms of the local mechanisms (normalisers, exact epsilons, moments, best parameters).

Most modules have the name of their mechanism in `jdp.mechanisms`. Two do not:

* `reconstruction` says what a local guarantee means to an attacker who wants the value back;
* `threshold` holds what PrivUnit and its variants share.
"""
