"""A model on this machine: where its time goes (`profile`), and a judged version in int8 (`quantize`)."""
