"""Protocols over HTTP: V2 with its extensions, chariot-v2-kserve, V1, generate, CloudEvents, and their OpenAPI document.

`operations` has what all endpoints share, `asgi` bodies and responses, `intake` the bounds of what comes in.
"""
