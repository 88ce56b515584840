"""Names of the types of NumPy arrays in annotations."""

from typing import Any

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
UInt8Array = npt.NDArray[np.uint8]
UInt16Array = npt.NDArray[np.uint16]
UnsignedArray = npt.NDArray[np.unsignedinteger[Any]]
Int16Array = npt.NDArray[np.int16]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
IntegerArray = npt.NDArray[np.integer[Any]]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
FloatingArray = npt.NDArray[np.floating[Any]]
BytesArray = npt.NDArray[np.bytes_]
AnyArray = npt.NDArray[Any]
