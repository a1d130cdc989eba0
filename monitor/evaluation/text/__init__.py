"""Answers to prompts."""
