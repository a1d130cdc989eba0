"""One label for each image or several: counts, curves and calibration."""
