"""A checkout over three services: durable orders, a payment provider that cannot be relied upon, a person who approves.

Workers are killed all the while. Run `python -m examples.checkout`.
"""
