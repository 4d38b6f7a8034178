"""A provider of identities for tests: OpenID Connect's code flow on a real socket, and lies on request.

It signs with a key of its own, knows which code was given for what, and is as strict with its client as it should be.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_urlsafe
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

CLIENT_ID = "slipstream"
CLIENT_SECRET = "s3cret:with/signs"


def _nothing(_: dict[str, Any]) -> None:
    """As it is."""


@dataclass
class IdentityProvider:
    """One. What is public here may be changed while it runs."""

    url: str = ""
    claims: dict[str, Any] = field(default_factory=lambda: {"sub": "u-1", "preferred_username": "ann"})
    """Of who signs in."""
    change_token: Callable[[dict[str, Any]], None] = _nothing
    """Spoils the claims of the next tokens."""
    change_description: Callable[[dict[str, Any]], None] = _nothing
    sign: Callable[[dict[str, Any]], str] | None = None
    """Makes the token in place of its own key."""
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Status and body in place of its own, by path."""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    key: RSAKey | ECKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": token_urlsafe(4)}))
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def rotate(self) -> None:
        """Sign with another key, of another kind, from now on."""
        self.key = ECKey.generate_key("P-256", {"kid": token_urlsafe(4)})

    @property
    def algorithm(self) -> str:
        """Of its key."""
        return "RS256" if isinstance(self.key, RSAKey) else "ES256"

    def token(self, asked: dict[str, str]) -> str:
        """For who was asked for that."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            **self.claims,
        }
        self.change_token(claims)
        if self.sign is not None:
            return self.sign(claims)
        return jwt.encode({"alg": self.algorithm, "kid": self.key.kid}, claims, self.key)


def unsigned(claims: dict[str, Any]) -> str:
    """A token that nobody has signed, and says so."""
    parts = (json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def signed_with_what_all_know(provider: IdentityProvider) -> Callable[[dict[str, Any]], str]:
    """Tokens by HMAC, with the provider's public key as the secret."""
    public = provider.key.as_pem(private=False)
    header = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": provider.key.kid}).encode()).rstrip(b"=")

    def sign(claims: dict[str, Any]) -> str:
        import hmac

        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
        signed = b".".join((header, payload))
        mac = hmac.new(public, signed, sha256).digest()
        return b".".join((signed, base64.urlsafe_b64encode(mac).rstrip(b"="))).decode()

    return sign


def signed_by_somebody(provider: IdentityProvider) -> Callable[[dict[str, Any]], str]:
    """Tokens of another key that calls itself as the provider's."""
    forged = RSAKey.generate_key(2048, {"kid": str(provider.key.kid)})
    return lambda claims: jwt.encode({"alg": "RS256", "kid": forged.kid}, claims, forged)


def shared_key() -> dict[str, Any]:
    """A key that is a secret of both sides, as a set of keys should never have it."""
    return dict(OctKey.generate_key(256, {"kid": "shared"}).as_dict(private=True))


@contextlib.contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """Running."""
    provider = IdentityProvider()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self._answer(parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()})

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
            self._answer(self.path, {name: values[0] for name, values in form.items()})

        def _answer(self, path: str, asked: dict[str, str]) -> None:
            provider.asked.append((path, asked))
            if path in provider.answers:
                self._send(*provider.answers[path])
            elif path == "/.well-known/openid-configuration":
                described: dict[str, Any] = {
                    "issuer": provider.url,
                    "authorization_endpoint": f"{provider.url}/authorize?kind=web",
                    "token_endpoint": f"{provider.url}/token",
                    "jwks_uri": f"{provider.url}/keys",
                    "id_token_signing_alg_values_supported": ["RS256", "ES256", "HS256", "none"],
                }
                provider.change_description(described)
                self._send(200, json.dumps(described).encode())
            elif path == "/authorize":
                code = token_urlsafe(8)
                provider.codes[code] = asked
                back = urlencode({"code": code, "state": asked["state"], "iss": provider.url})
                self.send_response(302)
                self.send_header("location", f"{asked['redirect_uri']}?{back}")
                self.send_header("content-length", "0")
                self.end_headers()
            elif path == "/keys":
                self._send(200, json.dumps({"keys": [provider.key.as_dict(private=False)]}).encode())
            elif path == "/token":
                self._send(*self._token(asked))
            else:
                self._send(404, b"{}")

        def _token(self, asked: dict[str, str]) -> tuple[int, bytes]:
            begun = provider.codes.pop(asked.get("code", ""), None)
            challenge = base64.urlsafe_b64encode(sha256(asked.get("code_verifier", "").encode()).digest()).rstrip(b"=")
            basic = base64.b64decode(self.headers.get("authorization", "").removeprefix("Basic ")).decode()
            name, _, secret = basic.partition(":")
            is_client = (unquote(name), unquote(secret)) == (CLIENT_ID, CLIENT_SECRET)
            if begun is None or not is_client or begun["code_challenge"] != challenge.decode():
                return 400, b'{"error": "invalid_grant"}'
            return 200, json.dumps(
                {"access_token": "a", "token_type": "Bearer", "id_token": provider.token(begun)}
            ).encode()

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
