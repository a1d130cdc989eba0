"""The commands of `quadriga`: options in, text and files out; what they run stands elsewhere."""
