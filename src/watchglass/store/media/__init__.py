"""Where objects lie: a local folder, a bucket; from what a person writes to one of them."""
