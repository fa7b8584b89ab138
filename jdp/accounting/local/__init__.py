"""Closed forms of the local mechanisms: normalisers, exact epsilons, moments, best parameters.

Each module has the name of its mechanism in `jdp.mechanisms`; `reconstruction` says what a local
guarantee means to an attacker who wants the value back, `threshold` what PrivUnit and its variants
share.
"""
