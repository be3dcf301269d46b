"""A rule on stored runs, beside labels."""
