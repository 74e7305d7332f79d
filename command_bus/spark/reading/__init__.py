"""Reading outcomes, rejects, dead letters and entities from the server as rows."""
