"""Closed forms of the local mechanisms (normalisers, exact epsilons, moments, best parameters).

Most modules have the name of their mechanism in `jdp.mechanisms`. These do not:

* `reconstruction` says what a local guarantee means to an attacker who wants the value back;
* `shuffling` is what a shuffler adds to the reports of any mechanism;
* `threshold` holds what PrivUnit and its variants share.
"""
