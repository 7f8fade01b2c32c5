"""Stands for `advisor` and `python` in a shell: `warm.py` runs the command with this one's streams and variables.

Called as ``python -I -S client.py SOCKET advisor ARGUMENT ...``; it loads next to nothing.
"""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    request = {"argv": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}  # noqa: PTH109  # loads no pathlib
    socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
    answer = connection.makefile()
    child = int(answer.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child, number))
    # Nothing comes where the child has died; what it has left to do after its answer is waited for.
    status = answer.readline() or "1"
    answer.read()
sys.exit(int(status))
