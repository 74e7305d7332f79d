"""Work of a worker beside running commands: it recovers lost leases, starts due work and removes what is over."""
