"""Commands that evaluate and compare, and what they print."""
