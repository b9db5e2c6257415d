"""What the application of the object-store tests does: it writes shards, and reads them again and again. One line of JSON a round.

Runs alone in a container: `python3 trainer.py PLACE`. Every shard is whole and right at every time, or the round says what it saw.
"""

import hashlib
import json
import os
import sys
import time

SHARDS, SHARD_BYTES = 6, 3 << 20


def shard(number: int) -> bytes:
    """Return a shard's content: each has its own."""
    piece = hashlib.sha256(b"%d" % number).digest()
    return piece * (SHARD_BYTES // len(piece))


def main(place: str) -> None:
    """Write the shards, then read them for ever: one through a descriptor that stays open, the others by name."""
    for number in range(SHARDS):
        with open(f"{place}/shard-{number}", "wb") as file:
            file.write(shard(number))
    kept = os.open(f"{place}/shard-0", os.O_RDONLY)
    wanted = [shard(number) for number in range(SHARDS)]
    number = 0
    while True:
        number += 1
        began = time.monotonic()
        faults = [] if os.pread(kept, SHARD_BYTES, 0) == wanted[0] else ["the open file is not what it was"]
        for index in range(1, SHARDS):
            try:
                with open(f"{place}/shard-{index}", "rb") as file:
                    if file.read() != wanted[index]:
                        faults.append(f"shard {index} is not what it was")
            except OSError as error:
                faults.append(f"shard {index}: {error.strerror}")
        try:
            with open(f"{place}/checkpoint-{number % 4}", "wb") as file:
                file.write(b"%d\n" % number * 1000)
        except OSError as error:
            faults.append(f"checkpoint: {error.strerror}")
        told = {"round": number, "took_s": round(time.monotonic() - began, 2), "faults": faults}
        print(json.dumps(told), flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1])
