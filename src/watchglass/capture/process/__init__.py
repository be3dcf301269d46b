"""The process that trains: how it becomes a worker of the run, and what becomes of it."""
