"""Steps shown to rules: runners, calls that end in time, needs, folding, parts."""
