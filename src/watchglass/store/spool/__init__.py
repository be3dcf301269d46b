"""What a store that may be unreachable has not taken yet, on the local disk."""
