"""Numbers of steps over the attempts of a run: which steps count, and how they are numbered."""
