"""Statistics of many steps in Parquet: written once, read by tensor or by step."""
