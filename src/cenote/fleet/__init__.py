"""One budget, one circuit breaker and one view for the pools of many processes."""
