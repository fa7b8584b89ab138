"""Attacks: lower bounds on what a release leaks, and what malicious clients can do."""
