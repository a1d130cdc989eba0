"""The pictures of a report, as vector graphics that take the colours of the page around them."""
