"""Runs in a notebook: figures of plotly by name, and a card that updates itself."""
