"""Static int8 versions of a model: calibrated on stored images, and judged before they may be served."""
