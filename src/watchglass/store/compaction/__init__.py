"""Less room for what has ended: generations, their lease and pins; removing runs and raw tensors."""
