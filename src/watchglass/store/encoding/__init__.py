"""What the bytes mean: frames, records, columns of statistics, raw tensors. Readers bound what they believe."""
