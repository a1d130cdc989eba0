"""Single sign-on: people by OpenID Connect and a session, machines by the provider's tokens.

Nothing here is imported unless `oidc_issuer` is set.
"""
