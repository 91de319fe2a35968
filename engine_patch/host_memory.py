"""The CPU and P2P cache tiers on vLLM's CPU build.

vLLM's `TieringOffloadingSpec` keeps a second copy of the KV cache in shared host memory, from where NIXL serves it to
other pods. Its scheduler half runs anywhere. Its worker half copies between the device and that memory with CUDA
streams, so vLLM refuses it elsewhere. On the CPU build the "device" cache is host memory too, and the copy is a plain
one: that is all this module replaces. A pod names it in `--kv-transfer-config`:

    "kv_connector_extra_config": {"spec_name": "HostMemoryTieringSpec", "spec_module_path": "engine_patch.host_memory",
                                  "cpu_bytes_to_use": 268435456, "secondary_tiers": [{"type": "p2p", …}], …}

Pods with this spec behave towards peers and gateways like pods with a GPU: same events (medium "GPU" is the engine's
own cache), same metrics, same pulls.

The region's file is removed from `/dev/shm` as soon as every process of the pod has mapped it, so that a killed pod
leaves nothing behind; what pods with vLLM's own spec left is removed at start-up (`engine_patch.stale_memory`), unless
`"remove_stale_memory": false` stands in the extra config.
"""

import contextlib
import inspect
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from engine_patch.chunks import chunk_places
from engine_patch.idle import pausing_progress, stop_spinning, yielding_threads
from engine_patch.stale_memory import SHM, remove_stale_files

_MADE_FOR = "vLLM 0.32"

try:
    import torch
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
    from vllm.logger import init_logger
    from vllm.platforms import current_platform
    from vllm.v1.kv_offload.base import (
        BlockIDsLoadStoreSpec,
        CanonicalKVCaches,
        GPULoadStoreSpec,
        LoadStoreSpec,
        OffloadingManager,
        OffloadingWorker,
        TransferResult,
    )
    from vllm.v1.kv_offload.config import OffloadingConfig
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
except ImportError as error:
    raise ImportError(
        f"engine_patch.host_memory is made for {_MADE_FOR}; this environment lacks a part: {error}"
    ) from error

logger = init_logger("vllm.engine_patch.host_memory")


def _check_interfaces() -> None:
    """Raise ImportError, in one line, when this vLLM is not shaped as this module expects."""
    expected = {
        SharedOffloadRegion.__init__: {"engine_id", "num_chunks", "rank", "kv_bytes_per_chunk", "cpu_page_size"},
        SharedOffloadRegion.create_next_worker_view: {"tensor_page_size"},
        GPULoadStoreSpec.__init__: {"block_ids", "group_sizes", "block_indices"},
        TransferResult.__init__: {"job_id", "success", "transfer_size", "transfer_time"},
        TieringOffloadingSpec.get_worker: {"kv_caches"},
        OffloadingWorker.submit_store: {"job_id", "src_spec", "dst_spec"},
        OffloadingWorker.submit_load: {"job_id", "src_spec", "dst_spec"},
    }
    for function, names in expected.items():
        missing = names - inspect.signature(function).parameters.keys()
        if missing:
            names_missing = ", ".join(sorted(missing))
            raise ImportError(
                f"engine_patch.host_memory is made for {_MADE_FOR}; here {function.__qualname__} lacks {names_missing}"
            )
    unknown = OffloadingWorker.__abstractmethods__ - {"submit_store", "submit_load", "get_finished", "wait"}
    if unknown:
        raise ImportError(
            f"engine_patch.host_memory is made for {_MADE_FOR}; here a worker needs {', '.join(sorted(unknown))}"
        )


_check_interfaces()


class HostMemoryTieringSpec(TieringOffloadingSpec):
    """vLLM's `TieringOffloadingSpec` with a worker for the CPU build. Takes the same extra config.

    vLLM makes one instance in the scheduler's process, for `get_manager`, and one in each worker's, for `get_worker`;
    all workers are ready before the scheduler's is made.
    """

    def __init__(self, config: OffloadingConfig) -> None:
        if not current_platform.is_cpu():
            raise RuntimeError("HostMemoryTieringSpec is for vLLM's CPU build; on GPUs name TieringOffloadingSpec")
        super().__init__(config)
        self._worker: OffloadingWorker | None = None
        stop_spinning(SpinCondition)
        if self.num_chunks == 0 and self.kv_bytes_per_chunk:
            raise RuntimeError(f"cpu_bytes_to_use holds not even one chunk of {self.kv_bytes_per_chunk} bytes")
        if config.canonical_layout:
            raise RuntimeError("HostMemoryTieringSpec does not support canonical_layout")

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The worker that copies between the engine's cache and the shared region; made once."""
        if self._worker is None:
            self._worker = self.create_worker(kv_caches)
        return self._worker

    def create_worker(self, kv_caches: CanonicalKVCaches) -> "HostMemoryWorker":
        """Map the shared region, whose first mapper makes it, and build the worker over it."""
        if self.extra_config.get("remove_stale_memory", True):
            for path, occupied in remove_stale_files(SHM):
                logger.info("Removed %s (%.0f MiB), left by a dead pod.", path, occupied / 2**20)
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return HostMemoryWorker(kv_caches, self.blocks_per_chunk, region)

    def get_manager(self) -> OffloadingManager:
        """The manager of the tiers, as vLLM makes it. The scheduler maps last, so the region's name can go."""
        with yielding_threads(), pausing_progress():
            manager = super().get_manager()
        if self._scheduler_mmap is not None:
            with contextlib.suppress(FileNotFoundError):
                Path(self._scheduler_mmap.mmap_path).unlink()
        return manager


class HostMemoryWorker(OffloadingWorker):
    """Copies KV pages between the engine's cache and the shared region, at once, in the caller's thread.

    A transfer is therefore finished when it is submitted, and transfers happen in the order of their submission.
    """

    def __init__(self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._region: SharedOffloadRegion | None = region
        # Per tensor: the engine's pages, [block, byte], and the region's, [chunk, block in chunk, byte]. As numpy
        # arrays, which share the memory and copy a row in a fraction of the time a torch tensor takes.
        self._device = []
        self._host = []
        for cache in kv_caches.tensors:
            page = cache.page_size_bytes
            self._device.append(cache.tensor.view(torch.int8).view(-1, page).numpy())
            chunks = region.create_next_worker_view(page * blocks_per_chunk)
            self._host.append(chunks.unflatten(1, (blocks_per_chunk, page)).numpy())
        # Per cache group: the tensors its layers lie in, and how many bytes of a page they use. Layers may share one.
        self._groups: list[dict[int, int]] = []
        for refs in kv_caches.group_data_refs:
            used: dict[int, int] = {}
            for ref in refs:
                used[ref.tensor_idx] = max(used.get(ref.tensor_idx, 0), ref.page_size_bytes)
            self._groups.append(used)
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Copy blocks of the engine's cache into chunks of the region."""
        started, copied = time.perf_counter(), 0
        for tensor, used, block, chunk, slot in self._pages(src_spec, dst_spec):
            self._host[tensor][chunk, slot, :used] = self._device[tensor][block, :used]
            copied += used
        return self._finish(job_id, copied, started)

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,  # noqa: ARG002, FBT001, FBT002
    ) -> bool:
        """Copy chunks of the region into blocks of the engine's cache. `expedited` (0.33) changes nothing here."""
        started, copied = time.perf_counter(), 0
        for tensor, used, block, chunk, slot in self._pages(dst_spec, src_spec):
            self._device[tensor][block, :used] = self._host[tensor][chunk, slot, :used]
            copied += used
        return self._finish(job_id, copied, started)

    def get_finished(self) -> list[TransferResult]:
        """The transfers submitted since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: Collection[int]) -> None:
        """Nothing to wait for: a submitted transfer has happened."""

    def shutdown(self) -> None:
        """Let go of the region. Its name in `/dev/shm` is gone already when start-up came to its end."""
        self._host.clear()
        self._device.clear()
        if self._region is not None:
            if not Path(self._region.mmap_path).exists():
                # The region's maker would warn, with a stack, that it cannot remove its file.
                self._region._creator = False  # noqa: SLF001
            self._region.cleanup()
            self._region = None

    def _pages(self, device: GPULoadStoreSpec, host: BlockIDsLoadStoreSpec) -> Iterator[tuple[int, int, int, int, int]]:
        """Every page of a transfer as (tensor, bytes, block, chunk, block in chunk)."""
        places = chunk_places(device.group_sizes, device.block_indices, host.block_ids.tolist(), self._blocks_per_chunk)
        blocks = iter(device.block_ids.tolist())
        for group, group_places in zip(self._groups, places, strict=True):
            for chunk, slot in group_places:
                block = next(blocks)
                for tensor, used in group.items():
                    yield tensor, used, block, chunk, slot

    def _finish(self, job_id: int, copied: int, started: float) -> bool:
        elapsed = time.perf_counter() - started
        self._finished.append(TransferResult(job_id, True, copied, elapsed))
        return True
