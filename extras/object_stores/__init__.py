"""Models from an object store, fetched into a cache and served from there; or from a folder that is polled."""
