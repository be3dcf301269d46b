"""What a store that may be away has not taken yet, on the local disk."""
