"""From the server to rows: outcomes, rejects, dead letters and entities."""
