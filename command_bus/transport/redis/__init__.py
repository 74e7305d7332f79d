"""The transport on Redis Streams (Redis 6.2 or newer, Valkey)."""
