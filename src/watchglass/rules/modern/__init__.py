"""The modern rules: what breaks training runs today, beyond the classic rules. One rule per file."""
