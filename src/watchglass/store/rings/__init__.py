"""The last records of a worker, in files of fixed size that outlive its process."""
