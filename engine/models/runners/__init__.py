"""What runs a graph: a session of onnxruntime in this process, or in a process of its own; batches, threads, memory."""
