"""Protocols of a transport, one module for each role."""
