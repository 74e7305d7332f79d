"""The pages that are read. Each asks the bus in a few round trips, and shows its answers."""
