"""What people read: tables, statements of guarantees, plots, intervals, and the parts of a report."""
