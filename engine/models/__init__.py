"""Models, from a folder or a bucket to something that runs: loading, versions, control, inspection.

`recognition` reads what a file expects and answers, `onnx` its bytes, `runners` run it, `image_text` holds models of
several graphs, and `model_source` fetches from object stores.
"""
