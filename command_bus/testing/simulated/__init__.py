"""A Redis in this process with time of its own: what the bus asks of a server, in Python, with the bus's own scripts in Lua 5.1.

The deterministic simulator of this repository runs on it, and so does `TestBus`; the conformance tests hold it to be the same server.
"""
