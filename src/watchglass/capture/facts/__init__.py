"""What facts of any framework are made of: samples of arrays, graphs of operations."""
