"""Transfers between accounts: written with their commands in one transaction of PostgreSQL, relayed, posted in batches, each once, in order.

Tellers, relay and posters are killed all the while, and connections of the database are cut: `python -m examples.ledger`.
"""
