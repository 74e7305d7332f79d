"""Proofs that are too large for a test: `python -m tests.spark.proofs --help`."""
