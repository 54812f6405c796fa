"""The pages without a gateway, on a made-up pool in a real store: what the browser tests talk to.

    uvicorn tests.web.pages_server:application

`/playground/stream/` is played here: the first answer breaks off in the middle, so that the page
must resume, and then it moves to another instance. A prompt with SLOWLY in it leaves time to press
buttons.
"""

import asyncio
import json
import os
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from channels.routing import URLRouter  # noqa: E402
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler  # noqa: E402
from django.core.handlers.asgi import ASGIHandler  # noqa: E402

from controlplane.fleet.watch import fleet_watch  # noqa: E402
from controlplane.leaving import leaving  # noqa: E402
from engine_pool.client import pool_client  # noqa: E402
from web.routing import websocket_urlpatterns  # noqa: E402

WORDS = [f"word{i} " for i in range(40)]
BREAKS_AFTER = 15
"""Events of an answer before its connection breaks."""
MOVES_AFTER = 20
"""Events of an answer before its request moves."""
SLOWLY = b"slowly"
REPLACED = b"replaced"
"""In a prompt: its server is replaced in the middle of the answer."""
STEP_S = 0.01
SLOW_STEP_S = 0.2

# Static files straight from their folders: nothing has been collected here.
pages = ASGIStaticFilesHandler(ASGIHandler())
sockets = URLRouter(websocket_urlpatterns)


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await _live(receive, send)
    elif scope["type"] == "websocket":
        await sockets(scope, receive, send)
    elif scope["path"] == "/test/replaced/":
        # As if this server were replaced: another one at the same address.
        await asyncio.gather(*(socket.go_away() for socket in list(leaving.sockets)))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    elif scope["path"] == "/playground/stream/":
        await _play(scope, receive, send)
    else:
        await pages(scope, receive, send)


async def _live(receive: Any, send: Any) -> None:
    await receive()
    following = asyncio.create_task(pool_client().view.run())
    fleet_watch().start()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await fleet_watch().stop()
    following.cancel()
    await send({"type": "lifespan.shutdown.complete"})


async def _play(scope: Any, receive: Any, send: Any) -> None:
    asked = (await receive())["body"]
    step_s = SLOW_STEP_S if SLOWLY in asked else STEP_S
    headers = dict(scope["headers"])
    after = int(headers.get(b"last-event-id", b"r:0").rpartition(b":")[2])
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/event-stream")],
        }
    )

    async def event(text: str) -> None:
        body = text.encode() + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})

    await event('event: ferry\ndata: {"request_id":"r","instance":"i-01"}')
    for number in range(after + 1, len(WORDS) + 1):
        if after == 0 and number > BREAKS_AFTER and SLOWLY not in asked:
            if REPLACED in asked:
                await event('data: {"error": {"code": "server_stopping", "resumable": true}}')
            # Ends without the last chunk: the connection breaks.
            return
        if number == MOVES_AFTER + 1:
            move = {"from": "i-01", "to": "i-02", "at_token": MOVES_AFTER, "gap_ms": 8.6}
            await event(f"event: ferry\ndata: {json.dumps({'request_id': 'r', **move})}")
        delta = {"choices": [{"index": 0, "delta": {"content": WORDS[number - 1]}}]}
        await event(f"id: r:{number}\ndata: {json.dumps(delta)}")
        await asyncio.sleep(step_s)
    ending = {
        "request_id": "r",
        "instance": "i-01",
        "ttft_ms": 12.0,
        "tokens_per_s": 99.0,
        "output_tokens": len(WORDS),
        "prompt_tokens": 7,
    }
    await event(f"event: ferry\ndata: {json.dumps(ending)}")
    await event("data: [DONE]")
    await send({"type": "http.response.body", "body": b""})
