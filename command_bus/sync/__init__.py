"""The bus for code without an event loop."""
