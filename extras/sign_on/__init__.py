"""Single sign-on: people by OpenID Connect and a session, machines by the provider's tokens.

Nothing here is imported but its settings unless `extras.sign_on.issuer` is set.
"""
