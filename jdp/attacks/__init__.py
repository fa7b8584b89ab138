"""Attacks: reconstruction of what a client sent, and what malicious clients can do."""
