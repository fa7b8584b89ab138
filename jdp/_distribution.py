"""How jdp is installed: its name on the package index, where `jdp` is another project."""

NAME = "jdp-fl"  # as in setup.cfg


def install(extra: str) -> str:
  """The command that installs an extra, which also works where jdp came from a clone.

  >>> install("checkpoints")
  "pip install 'jdp-fl[checkpoints]'"
  """
  return f"pip install '{NAME}[{extra}]'"
