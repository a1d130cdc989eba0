"""HTTP adapters of store and monitor: paths, statuses, headers and bodies, without logic of their own."""
