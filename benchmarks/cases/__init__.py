"""Measurements of the bus. Each module has the cases of one question, and `ALL` lists them; `program` is the process that they start."""
