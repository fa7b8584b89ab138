"""What a run cost, or would cost, by every accountant."""
