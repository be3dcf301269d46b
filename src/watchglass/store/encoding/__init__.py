"""Encodings: frames, records, columns of statistics, raw tensors. Decoders trust no size that bytes claim."""
