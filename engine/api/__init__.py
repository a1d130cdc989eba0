"""HTTP adapters of store and monitor: paths, statuses, headers and bodies; what they ask for is decided there."""
