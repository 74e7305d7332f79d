"""Wire formats: MessagePack values, the envelope around a command, typed payloads and replies, and the dead-letter record."""
