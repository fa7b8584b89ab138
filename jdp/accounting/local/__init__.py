"""Closed forms of the local mechanisms (normalisers, exact epsilons, moments, best parameters).

Most modules have the name of their mechanism in `jdp.mechanisms`. Others:

* `reconstruction` says what a local guarantee means to an attacker who wants the value back;
* `shuffling` is what a shuffler adds to the reports of any mechanism;
* `threshold` and `cap_shares` hold what PrivUnit and its variants share.
"""
