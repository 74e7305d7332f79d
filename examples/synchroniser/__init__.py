"""A synchroniser for shops: a partner's rate limit, closing of books at night, a debounced search index, urgent refunds.

A year's worth of nights passes in seconds, and workers are killed all the while. Run `python -m examples.synchroniser`.
"""
