"""Costs of the bus, beside the floor that Redis and Python allow and beside other libraries: `python -m benchmarks --help`.

cases/    what is measured of the bus: dispatch, drain, call, wake-up, memory, growth
floor/    the same steps in bare redis-py, without any promise
peers/    other libraries, each in an environment of its own, behind the same small protocol
targets   the project's targets, and `judging`, which decides which of them a run meets
plot      the pictures of the documentation, from a run's JSON

The server and each worker are processes of their own, as in production. A measured process reports its first and its last job
itself (`protocol`), so that start-up does not count. `spark` and `spark_outcomes` measure the way from Spark, on their own.
"""
