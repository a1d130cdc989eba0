"""Models, from a folder to something that runs: loading, versions, control, inspection.

`recognition` reads what a file expects and answers, `onnx` its bytes, `runners` run it, and `image_text` holds models of
several graphs.
"""
