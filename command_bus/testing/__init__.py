"""Tools for tests of programs that use the bus (extra `testing`)."""
