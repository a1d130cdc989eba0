"""What few use and nothing needs, a folder each: it goes with its folder and its rows in `quadriga.engine.config.extras`."""
