"""Where a base URL leads: the host field that it gives, and what is refused."""

from __future__ import annotations

import pytest

from backends.errors import ConfigurationError
from backends.http.origin import parse_origin


@pytest.mark.parametrize(
    ("url", "host_header"),
    [
        ("http://example.com", b"example.com"),
        ("http://example.com:80/v1", b"example.com"),
        ("https://example.com:443/", b"example.com"),
        ("https://EXAMPLE.com:80", b"example.com:80"),
        ("http://[::1]:8000/v1", b"[::1]:8000"),
        ("http://bücher.example", b"xn--bcher-kva.example"),
    ],
)
def test_origin_of_a_base_url_gives_the_host_field(url: str, host_header: bytes) -> None:
    """The default port is left out, IPv6 keeps its brackets, names are in their ASCII form."""
    assert parse_origin(url).host_header == host_header


@pytest.mark.parametrize(
    "url",
    ["a.test", "ftp://a.test", "http://", "http://user:sesame@a.test", "http://a.test:99999", "http://" + "a" * 64],
)
def test_base_url_that_cannot_be_used_is_refused_without_its_secret(url: str) -> None:
    """A mistake is found at start, and credentials are not repeated."""
    with pytest.raises(ConfigurationError) as raised:
        parse_origin(url)

    assert "sesame" not in raised.value.message
