"""All runs below a prefix with one process, and what others may see of them."""
