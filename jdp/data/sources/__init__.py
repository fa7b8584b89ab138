"""Users who are read when a round needs them: the protocol, its cohorts, and files."""
