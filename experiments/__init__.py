"""One absl binary per paper, all on one runner: `python -m experiments.<name> --help`."""
