"""Run several processes of the service, each with its own regions and port.

    python serve.py --table orders.lance --processes 2 --port 8000

Each process accepts any request, and forwards the rows of other regions to their owners. A process
that dies is restarted; its claim replays the log. On SIGTERM all of them flush and end.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
FLUSH_SECONDS = 60


def start(table: str, number: int, ports: list[int]) -> subprocess.Popen[bytes]:
    """Start one process."""
    peers = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    own = {"ORDERS_TABLE": table, "ORDERS_PEERS": peers, "ORDERS_NUMBER": str(number)}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "--factory", "service:create_app"),
            *("--app-dir", str(HERE), "--port", str(ports[number])),
            *("--log-level", "warning", "--timeout-graceful-shutdown", str(FLUSH_SECONDS)),
        ],
        env={**os.environ, **own},
    )


def main() -> None:
    """Keep the processes running until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", default="orders.lance")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--port", type=int, default=8000, help="of the first one")
    given = parser.parse_args()
    ports = [given.port + number for number in range(given.processes)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    running = [start(given.table, number, ports) for number in range(given.processes)]
    try:
        while True:
            time.sleep(0.2)
            for number, process in enumerate(running):
                if process.poll() is not None:
                    print(f"process {number} ended with {process.returncode}", file=sys.stderr)
                    time.sleep(1)
                    running[number] = start(given.table, number, ports)
    except KeyboardInterrupt:
        pass
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(FLUSH_SECONDS)


if __name__ == "__main__":
    main()
