"""The first bad module: which module first produced a NaN or an infinity, in three levels."""
