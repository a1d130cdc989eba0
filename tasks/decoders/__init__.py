"""One file per family of models: raw output tensors to candidates."""
