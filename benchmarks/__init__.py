"""What the bus costs, beside the floor that Redis and Python allow and beside other libraries: `python -m benchmarks --help`.

cases/    what is measured of the bus: dispatch, drain, call, wake-up, memory, growth
floor/    the same steps in bare redis-py, without any promise
peers/    other libraries, each in an environment of its own, behind the same small protocol
targets   which of the project's targets a run meets
plot      the pictures of the documentation, from a run's JSON

The server and whoever works are processes of their own, as in real life. A measured process tells its first and its last job itself
(`protocol`), so that nobody's start counts. `spark` and `spark_outcomes` are about the way from Spark and stand for themselves.
"""
