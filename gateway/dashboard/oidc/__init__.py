"""Sign-in at a provider of identities, by OpenID Connect: the code flow with PKCE."""
