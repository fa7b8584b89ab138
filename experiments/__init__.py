"""One absl binary per paper, sharing one runner: `python -m experiments.<name> --help`."""
