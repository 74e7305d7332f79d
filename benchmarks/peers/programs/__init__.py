"""One program a peer. Each runs in its peer's environment, where this package is on the path and nothing else of the project's is
installed; type checkers leave the folder out, since they see none of these libraries.

Each does four things as the library's own documentation says is fast: `send` jobs by the usual call, one by one or many at a time, `fill`
the queue with them in bulk if there is a way, `work` through them in one process, and `call`, with results on. Where a library polls for
results, it does so each millisecond.
"""
