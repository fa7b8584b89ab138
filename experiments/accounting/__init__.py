"""What a run cost, or what a planned run would cost, by every accountant."""
