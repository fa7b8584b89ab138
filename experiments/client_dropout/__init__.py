"""Noise that clients add themselves, and the part of it that survives client dropout."""
