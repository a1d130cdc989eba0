"""The way of a request once it is parsed: queue, images or tensors, the model's run, recording, the answer.

`tensors` answers requests without images.
"""
