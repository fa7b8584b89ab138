"""What an attacker can reconstruct from private releases (arXiv 1812.00984, Section 2)."""
