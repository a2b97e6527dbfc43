"""What runs in each of vLLM's processes: they end with the gateway that started them, and keep to seeds.

vLLM stops its processes when it is stopped; a gateway that is killed stops nobody, and its engine would hold
the GPU for ever. Named by an entry point of group `vllm.general_plugins`.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import threading
from multiprocessing import connection
from typing import Final

from duplex.adapters.engine.vllm_seeds import draw_for_whole_prompts_alone

MARK: Final = "DUPLEX_VLLM_ENDS_WITH_PARENT"
"""Set by a gateway for its engine: in other programs that have vLLM, this does nothing."""


def register() -> None:
    """Watch the process that started this one, if a gateway's engine is to be had here."""
    parent = multiprocessing.parent_process()
    if parent is not None and os.environ.get(MARK) and not _watching.is_set():
        _watching.set()
        threading.Thread(target=_watch, args=(parent.sentinel,), name="duplex parent", daemon=True).start()
        if importlib.util.find_spec("vllm") is not None:
            draw_for_whole_prompts_alone()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


_watching = threading.Event()
