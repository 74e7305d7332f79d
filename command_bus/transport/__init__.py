"""The transport of commands: segregated interfaces, and their implementation on Redis Streams."""
