"""Noise that clients add themselves, and what is left of it when clients vanish."""
