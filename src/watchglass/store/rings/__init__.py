"""What a worker recorded last, in files of fixed size that outlive its process."""
