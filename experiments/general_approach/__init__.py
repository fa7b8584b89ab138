"""A general approach to private iterative training (arXiv 1812.06210)."""
