"""`mage-vl`: Mage-VL as an adapter. It watches video and comments on it when its gate says so, and answers.

The gateway's process has neither the model nor its weights: the eye (vision encoder and gate) is in a worker,
the decoder in vLLM's engine core, or on a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from duplex.adapters.base import Adapter, AdapterInfo, NotConfigured
from duplex.adapters.engine.language import LanguageEngine
from duplex.adapters.health import Figure
from duplex.adapters.mage_vl import building
from duplex.adapters.mage_vl.chat import ServerWriter
from duplex.adapters.mage_vl.config import read_config
from duplex.adapters.mage_vl.options import NOT_CONFIGURED, MageOptions, read_options
from duplex.adapters.mage_vl.ports import Backend, Sight, Writer
from duplex.adapters.mage_vl.prompt import ChatWriter
from duplex.adapters.mage_vl.session import MageSession, Parts
from duplex.adapters.spoken import Spoken
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality, OpenSession

_WRITERS = 2
"""Threads that write prompts: apart from those that prepare windows, which take longer."""
_SEES = (Modality.TEXT, Modality.IMAGE, Modality.VIDEO)


class MageVl:
    """The adapter: its parts, started and stopped together. `pool`: threads that some of them use."""

    def __init__(
        self,
        options: MageOptions,
        *,
        engine: LanguageEngine,
        sight: Sight,
        backend: Backend,
        writer: Writer,
        pool: Executor | None = None,
    ) -> None:
        self.options = options
        self.engine = engine
        self.sight = sight
        self._backend = backend
        self._pool = pool
        self._writing = ThreadPoolExecutor(_WRITERS, "mage-vl-writing")
        self._parts = Parts(
            engine=engine,
            sight=sight,
            backend=backend,
            writer=writer,
            writing=self._writing,
            limits=options.limits,
        )
        self._up = False
        self.info = AdapterInfo(
            id=options.id,
            input_modalities=_SEES + ((Modality.CODEC_WINDOW,) if backend.takes_codec else ()),
            output_modalities=(Modality.TEXT,),
            proactive=sight.gate,
            description="Mage-VL: comments on video as it happens, and answers questions about it.",
        )

    @property
    def healthy(self) -> bool:
        """The eye and the decoder are up, and windows can be prepared."""
        return self._up and all(part.healthy for part in self._watched)

    @property
    def fault(self) -> str | None:
        """What is wrong with what is down."""
        faults = [part.fault for part in self._watched if not part.healthy and part.fault]
        return "; ".join(faults) or None

    @property
    def _watched(self) -> tuple[LanguageEngine | Sight | Backend, ...]:
        return self.engine, self.sight, self._backend

    def figures(self) -> Iterable[Figure]:
        """All parts', for `/metrics`, and what sessions gave up."""
        for part in self._watched:
            yield from part.figures()
        yield Figure(
            name="windows_coalesced",
            kind="counter",
            words="Windows of sessions that were given up for newer ones.",
            value=float(self._parts.tally.coalesced),
        )

    async def start(self) -> None:
        """Load all. The eye first: vLLM takes its share of the GPU's memory from what is left.

        Raises:
            DuplexError: a part cannot start: what it says; none is left running.
        """
        try:
            await self._backend.start()
            await self.sight.start()
            await self.engine.start()
        except BaseException:
            await self.stop()
            raise
        self._up = True

    async def open(self, request: OpenSession) -> MageSession:
        """A session. Raises `DuplexError`: options that the model does not have, or a part is down."""
        if not self._up:
            raise DuplexError(ErrorCode.ENGINE_DOWN, f"{self.info.id} is not started")
        return MageSession(self._parts, request.settings)

    async def stop(self) -> None:
        """End all. Sessions must be closed before."""
        self._up = False
        try:
            await self.engine.stop()
        finally:
            try:
                await self.sight.stop()
            finally:
                await self._backend.stop()
                for pool in (self._pool, self._writing):
                    if pool is not None:
                        pool.shutdown(wait=False, cancel_futures=True)


def create(options: Mapping[str, Any]) -> Adapter:
    """The factory of entry point `mage-vl`.

    Raises:
        NotConfigured: neither a model nor a server is given.
        DuplexError: `BAD_CONFIG` for an unknown or impossible option, a checkpoint that is not there or not
            whole, a package or a voice that is not there.
    """
    if not options:
        raise NotConfigured(NOT_CONFIGURED, param="model")
    read = read_options(options)
    building.require(read)
    folder = building.checkpoint(read) if read.looks else None
    pool = ThreadPoolExecutor(read.workers, "mage-vl-windows")
    writer: Writer
    if read.remote is not None:
        engine = building.remote_engine(read.id, read.remote)
        writer = ServerWriter(read.remote.image_tokens)
    else:
        assert folder is not None
        engine = building.local_engine(read, folder)
        writer = ChatWriter.load(folder, read_config(folder))
    adapter = MageVl(
        read,
        engine=engine,
        sight=building.sight(read, folder, pool),
        backend=building.Windows(read, pool),
        writer=writer,
        pool=pool,
    )
    return adapter if read.voice is None else Spoken(adapter, building.voice(read.voice))
