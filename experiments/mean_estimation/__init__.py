"""Mean estimation under local privacy: every mechanism beside its own closed form."""
