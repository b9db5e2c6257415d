"""Lists for nginx what `rclone serve s3` lists, with nginx's ETags: `nginx_listing.py PORT RCLONE_PORT`.

rclone would read every file for an ETag, or has none; nginx makes one of time and size, and a client compares the two.
"""

import http.client
import re
import sys
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_LOOPBACK = "127.0.0.1"
_ANSWER_S = 300.0
_ENTRY = re.compile(
    rb"<LastModified>([^<]+)</LastModified>\s*<ETag>[^<]*</ETag>\s*<Size>(\d+)</Size>", re.DOTALL
)


def with_etags(listing: bytes) -> bytes:
    """Return a listing whose every entry has the ETag that nginx gives the file. Source: ngx_http_set_etag."""
    return _ENTRY.sub(_entry, listing)


def _entry(found: re.Match[bytes]) -> bytes:
    modified, size = found[1].decode(), int(found[2])
    etag = f"&quot;{int(datetime.fromisoformat(modified).timestamp()):x}-{size:x}&quot;"
    return f"<LastModified>{modified}</LastModified><ETag>{etag}</ETag><Size>{size}</Size>".encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    rclone_port = 0

    def do_GET(self) -> None:
        """Ask rclone the same, and answer."""
        upstream = http.client.HTTPConnection(_LOOPBACK, self.rclone_port, timeout=_ANSWER_S)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            upstream.putrequest("GET", self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                upstream.putheader(name, value)
            upstream.endheaders()
            answer = upstream.getresponse()
            body = with_etags(answer.read())
        finally:
            upstream.close()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type", "application/xml"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: nginx has the log."""


def main() -> None:
    """Serve until the process is told to end."""
    port, _Handler.rclone_port = int(sys.argv[1]), int(sys.argv[2])
    with ThreadingHTTPServer((_LOOPBACK, port), _Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
