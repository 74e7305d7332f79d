"""Redis, the worker's side: reading, leases, steps, recovery and periodic jobs."""
