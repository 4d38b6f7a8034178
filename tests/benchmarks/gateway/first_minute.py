"""How long somebody new takes to a dashboard with traffic of their own: `git clone`, `make serve`, a question.

    python -m tests.benchmarks.gateway.first_minute [--from REPOSITORY] [--serve "UPSTREAM=http://host:port/v1"]

A fresh clone of this repository's last commit in a folder of the system's. Packages come from pip's cache where it has
them; the first run on a machine says what that takes. The dashboard is looked at by Chromium, where there is one.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

from tests.benchmarks.gateway.dashboard import has_painted

_WITHIN_S = 900.0
_ADDRESS = re.compile(r"listens on (http://[^/\s]+)/v1")


def _wait_for_address(process: subprocess.Popen[bytes], output: Path) -> str:
    give_up_at = time.monotonic() + _WITHIN_S
    while (found := _ADDRESS.search(output.read_text(encoding="utf-8", errors="replace"))) is None:
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise SystemExit(f"make serve has not come up:\n{output.read_text(encoding='utf-8', errors='replace')}")
        time.sleep(0.05)
    return found[1]


def _wait_for_figures(client: httpx.Client) -> None:
    give_up_at = time.monotonic() + 30
    while client.get("/dashboard/api/overview").raise_for_status().json()["totals"]["calls"] < 1:
        if time.monotonic() > give_up_at:
            raise SystemExit("the call is not on the dashboard")
        time.sleep(0.05)


def main() -> None:
    """Print how long each step took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="repository", default=str(Path(__file__).resolve().parents[3]))
    parser.add_argument("--serve", default="", help="what is handed to `make serve`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipstream-new-", ignore_cleanup_errors=True) as folder:
        begin = time.monotonic()

        def say(what: str) -> None:
            print(f"{time.monotonic() - begin:>7.1f} s  {what}", flush=True)

        clone, output = Path(folder, "clone"), Path(folder, "output")
        subprocess.run(["git", "clone", "--quiet", options.repository, str(clone)], check=True)
        say("cloned")
        command = ["make", "serve", "ARGS=--port 0", *options.serve.split()]
        with output.open("wb") as file:
            process = subprocess.Popen(command, cwd=clone, stdout=file, stderr=file, start_new_session=True)
        try:
            url = _wait_for_address(process, output)
            say("`make serve` has said where it listens")
            with httpx.Client(base_url=url, timeout=60) as client:
                model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
                body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}
                client.post("/v1/chat/completions", json=body).raise_for_status()
                say(f"{model} has answered")
                _wait_for_figures(client)
                say("the dashboard has the call")
            painted = has_painted(url, "h1:has-text('spent')")
            say("Chromium shows it" if painted else "no Chromium to look at it")
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            shutil.rmtree(clone, ignore_errors=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{used.ru_utime + used.ru_stime:>7.1f} s  of a processor, which is what counts where others work beside it"
        )


if __name__ == "__main__":
    main()
