"""Types of arrays by their elements; what the axes mean is said where an array is passed."""

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
UInt8Array = npt.NDArray[np.uint8]
UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]
Float16Array = npt.NDArray[np.float16]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
