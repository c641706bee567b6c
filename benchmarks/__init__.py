"""What the pool costs, beside what others cost in the same run."""
