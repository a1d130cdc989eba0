"""The bytes of an ONNX file: its graph, its weights beside it, and the output that may serve as an embedding."""
