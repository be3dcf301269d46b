"""Compiled steps of any framework: a step is one call of a compiled function, and a twin of that captures it."""
