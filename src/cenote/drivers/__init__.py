"""The drivers that cenote brings along, each for one library."""
