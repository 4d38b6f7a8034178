"""Runs the program that reads list prices; blocks for as long as that takes, so not on the loop."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

from backends.errors import ConfigurationError
from policies.prices.listed import ListQuestion, PriceList

_PROGRAM = "policies.prices.package"
_LIMIT_S = 60.0


def has_list_prices() -> bool:
    """Whether the package with providers' list prices is installed."""
    return importlib.util.find_spec("genai_prices") is not None


def read_price_list(addresses: Mapping[str, str], names: Mapping[str, str], now_s: float) -> PriceList:
    """The lists of the providers at these addresses, and of those that backends name, each by backend.

    Raises: ConfigurationError where the package is not there or cannot be read, or has no provider of such a name.
    """
    if not has_list_prices():
        raise ConfigurationError(
            "prices.source: genai-prices is not installed: pip install 'slipstream-gateway[prices]', or write "
            "`source: none`"
        )
    question = msgspec.json.encode(ListQuestion(addresses, names, now_s))
    try:
        done = subprocess.run(
            [sys.executable, "-m", _PROGRAM], input=question, capture_output=True, timeout=_LIMIT_S, check=True
        )
        listed = msgspec.json.decode(done.stdout, type=PriceList)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigurationError(f"prices.source: genai-prices cannot be read: {said}") from error
    except (subprocess.TimeoutExpired, OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"prices.source: genai-prices cannot be read: {error}") from error
    for backend, name in names.items():
        if backend not in listed.providers:
            near = get_close_matches(name, listed.known, n=1)
            hint = f' Did you mean "{near[0]}"?' if near else ""
            raise ConfigurationError(
                f'backends.{backend}.priced_as: genai-prices {listed.version} has no provider "{name}".{hint} Known: '
                f"{', '.join(listed.known)}"
            )
    return listed
