"""What compiled code calls and updates: seen only where it was prepared for before it was compiled."""
