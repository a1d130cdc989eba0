"""Who may use the server: keys, and the gate that reads them from requests."""
