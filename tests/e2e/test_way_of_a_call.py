"""The picture in docs/architecture.md: the folders that it draws are those that a call really goes through."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.docs import page
from tests.support.servers.openai_server import OpenAIServer
from tests.support.way_of_a_call import way_of_a_call

NOT_DRAWN = {"policies", "backends", "backends/charges", "gateway/process"}
"""Values that all of a layer use, and the tick of the server's clock."""


async def test_way_of_a_call_is_the_one_that_is_drawn(openai_server: OpenAIServer, tmp_path: Path) -> None:
    """With an exact cache, admission and a least-cost pool: every folder that it enters is a box, and no other is."""
    entered = {call.rpartition("/")[0] for call in await way_of_a_call(openai_server, tmp_path)}

    drawn = re.findall(r'class="room"[^>]*>([\w/]+)<', page("docs/way-of-a-call.svg"))
    assert set(drawn) == entered - NOT_DRAWN
    assert len(drawn) == len(set(drawn))
