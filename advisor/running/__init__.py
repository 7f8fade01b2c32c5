"""What runs in production: models and strategies made ready, and models asked by a strategy."""
