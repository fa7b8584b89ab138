"""Audits: lower bounds on epsilon that an attacker can prove, beside the stated epsilon."""
