"""Calls and updates inside compiled code: observed only after preparation before the compilation."""
