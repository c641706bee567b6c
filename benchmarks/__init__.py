"""What the pool costs, beside what asyncio's own tools cost in the same run."""
