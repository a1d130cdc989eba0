"""Models from an object store: listed, fetched into a cache, and served from there."""
