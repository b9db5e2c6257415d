"""The peer of the webhook: aiohttp over TLS that reads the body and answers the same "allowed" to everything.

`python -m e2e.bench.noop_webhook CERTIFICATE KEY` prints its port.
"""

import asyncio
import ssl
import sys

from aiohttp import web

_ALLOWED = (
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"0","allowed":true}}'
)


async def answer(request: web.BaseRequest) -> web.Response:
    """Read everything, allow it."""
    await request.read()
    return web.Response(body=_ALLOWED, content_type="application/json")


async def serve(certificate: str, key: str) -> None:
    """Serve until killed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = web.Server(answer, access_log=None)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, ssl=context)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:3]))
