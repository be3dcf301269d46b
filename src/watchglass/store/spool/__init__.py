"""A buffer on the local disk for objects that an unreachable store has not taken yet."""
