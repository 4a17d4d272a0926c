"""A process with torch imported that forks workers on request, so that each starts in milliseconds.

Run as ``python hatchery.py <fd> [module ...]``: the modules are imported too; the
descriptor is a SEQPACKET socket. A request is JSON
{"script", "environment", "output"} with at most one descriptor (the worker's link); the answer is its pid.
"""

from __future__ import annotations

import array
import importlib
import json
import os
import runpy
import signal
import socket
import sys


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    import torch
    import torch.distributed
    import torch.distributed.fsdp
    import torch.distributed.tensor
    import torch.utils.data

    torch.set_num_threads(1)
    # The first optimizer imports torch._dynamo and what it needs: most of a second.
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    import yoco.training.run  # noqa: F401

    for name in sys.argv[2:]:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, ancillary, _flags, _address = requests.recvmsg(256 * 1024, socket.CMSG_SPACE(16))
        if not data:
            os._exit(0)  # taking torch down in order would take seconds
        fds = array.array("i")
        for _level, _kind, payload in ancillary:
            fds.frombytes(payload)
        pid = os.fork()
        if pid == 0:
            requests.close()
            become(json.loads(data), list(fds))
        for fd in fds:
            os.close(fd)
        requests.send(str(pid).encode())


def become(request: dict, fds: list[int]) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(request["environment"])
    if fds:
        os.set_inheritable(fds[0], True)
        os.environ["YOCO_LINK_FD"] = str(fds[0])
    code = 0
    try:
        sys.argv = [request["script"]]
        runpy.run_path(request["script"], run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        leave(code)


def leave(code: int) -> None:
    """The parent is not whoever asked for this process, so the code is written where it was asked for."""
    paper = os.environ.get("HATCHERY_CODE_FILE")
    if paper:
        with open(paper, "w") as file:
            file.write(str(code))
    os._exit(code)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
