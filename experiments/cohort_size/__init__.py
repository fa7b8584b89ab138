"""What the size of a cohort changes: accuracy, error of a round's average, and time."""
