"""The lowest versions that a setup.cfg allows, a constraint for pip for each dependency."""

import configparser
import re
import sys

config = configparser.ConfigParser()
config.read(sys.argv[1])
groups = [config["options"]["install_requires"], *config["options.extras_require"].values()]
for requirement in sorted({line for group in groups for line in group.split()}):
  bound = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", requirement)
  if not bound:
    sys.exit(f"Expected NAME>=VERSION in {sys.argv[1]}, got {requirement}; say the lowest version.")
  print("==".join(bound.groups()))
