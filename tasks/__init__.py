"""Images in, predictions out: pure numpy and OpenCV, one file per task."""
