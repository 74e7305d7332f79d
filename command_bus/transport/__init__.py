"""How commands travel: segregated interfaces, and their implementation on Redis Streams."""
