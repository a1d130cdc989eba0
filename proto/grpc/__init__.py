"""V2 over gRPC: HTTP/2, the messages, who may call what, and the RPCs."""
