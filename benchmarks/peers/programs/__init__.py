"""One program a peer. Each runs in its peer's environment, where this package is on the path and nothing else of the project's is
installed; type checkers leave the folder out, since they see none of these libraries.

Each does three things as the library's own documentation says is fast: `fill` the queue with jobs of our commands' size, `work` through
them in one process, and `call`, with results on. Where a library polls for results, it does so each millisecond.
"""
