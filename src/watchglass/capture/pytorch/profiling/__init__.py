"""Where the time and the memory of steps go."""
