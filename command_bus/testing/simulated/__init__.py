"""A simulated Redis in this process, with its own clock: the commands that the bus uses, in Python, and the bus's scripts in Lua 5.1.

The deterministic simulator of this repository and `TestBus` run on it. The conformance tests check that it behaves like a real server.
"""
