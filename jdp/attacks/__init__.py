"""What really leaks, and what malicious clients can do."""
