"""HTTPS load from keep-alive connections: by wrk, or by a small client where there is none."""

import http.client
import json
import re
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

_RESULT = re.compile(r"(\d+) requests in ([\d.]+)(us|ms|s|m)")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_ERRORS = re.compile(r"(?:Non-2xx or 3xx responses: (\d+)|Socket errors: (.*))")

# Bodies are sent one after the other, so that no two requests in a row are the same.
_SCRIPT = """
local requests, number = {}, 0
function init(arguments)
  wrk.headers["Content-Type"] = "application/json"
  for _, path in ipairs(arguments) do
    local file = io.open(path, "rb")
    requests[#requests + 1] = wrk.format("POST", nil, nil, file:read("*a"))
    file:close()
  end
end
function request()
  number = number % #requests + 1
  return requests[number]
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What came of one run. `errors` counts answers that were none of 2xx, and broken connections."""

    requests: int
    seconds: float
    errors: int

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds


class Loader:
    """Sends bodies to a URL. Files of its own live as long as it does."""

    def __init__(self, bodies: Sequence[bytes], *, connections: int, processor: int | None) -> None:
        self._bodies = bodies
        self._connections = connections
        self._processor = processor
        self._directory = tempfile.TemporaryDirectory(prefix="sidemount-bench-")
        root = Path(self._directory.name)
        self._script = root / "load.lua"
        self._script.write_text(_SCRIPT)
        self._paths = []
        for number, body in enumerate(bodies):
            path = root / f"{number}.json"
            path.write_bytes(body)
            self._paths.append(str(path))

    @property
    def name(self) -> str:
        """What sends the load."""
        return "wrk" if shutil.which("wrk") else "a Python client"

    def close(self) -> None:
        """Remove the files."""
        self._directory.cleanup()

    def run(self, port: int, path: str, seconds: float) -> Load:
        """Send as much as is answered for some seconds."""
        if shutil.which("wrk"):
            return self._run_wrk(port, path, seconds)
        return self._run_client(port, path, seconds)

    def _run_wrk(self, port: int, path: str, seconds: float) -> Load:
        pinned = ["taskset", "-c", str(self._processor)] if self._processor is not None else []
        argv = [
            *pinned, "wrk", "-t1", f"-c{self._connections}", f"-d{seconds:g}s", "--timeout", "10s",
            "-s", str(self._script), f"https://127.0.0.1:{port}{path}", "--", *self._paths,
        ]  # fmt: skip
        told = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 30, check=True).stdout
        result = _RESULT.search(told)
        if result is None:
            raise RuntimeError(f"wrk says {json.dumps(told[:200])}")
        errors = sum(
            int(number) for match in _ERRORS.findall(told) for number in re.findall(r"\d+", " ".join(match))
        )
        return Load(int(result[1]), float(result[2]) * _UNIT_S[result[3]], errors)

    def _run_client(self, port: int, path: str, seconds: float) -> Load:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        stop = Event()
        counts: list[tuple[int, int]] = []

        def work(first: int) -> None:
            answered = errors = 0
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
            while not stop.is_set():
                body = self._bodies[(first + answered) % len(self._bodies)]
                try:
                    connection.request("POST", path, body, {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    response.read()
                    errors += response.status >= 300
                except (OSError, http.client.HTTPException):
                    errors += 1
                    connection.close()
                answered += 1
            connection.close()
            counts.append((answered, errors))

        threads = [Thread(target=work, args=(number,)) for number in range(self._connections)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        stop.wait(seconds)
        stop.set()
        for thread in threads:
            thread.join(20)
        elapsed = time.perf_counter() - began
        return Load(sum(count for count, _ in counts), elapsed, sum(errors for _, errors in counts))
