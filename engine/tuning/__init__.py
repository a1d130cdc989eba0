"""Smaller and faster models: quantization with its judgement, and profiling of settings."""
