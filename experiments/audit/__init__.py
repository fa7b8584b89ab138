"""Audits: what an attacker can prove of every mechanism, beside what is stated."""
