"""The console: pages about what the server runs and has stored, for people with a browser."""
