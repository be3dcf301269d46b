"""Real object-store servers for tests, started when a test first asks for one and ended with the run of the tests."""
