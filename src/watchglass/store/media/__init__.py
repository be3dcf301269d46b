"""The media of stores: a local folder, a bucket; and the locations that users write."""
