"""The training of one run on several ranks: processes that share the work of each step and keep the
same weights, to the last bit those of one.

Rank 0 is the worker: it holds the lock, writes, and announces what is next. The others are its
children, do what it announces, and die with it. What a rank computes (micro-batches, batches that
are evaluated) depends on no other rank. Sums over ranks are added in one order, whichever rank has
which part (see `summed`).

Used by training/worker.py, which forks the ranks of `ablate sweep launcher.gpus_per_run=N`, by
training/loop.py and by training/training.py. A new word for `tell` also needs a case in `_follow`
(training/loop.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ablate.run import RANK_KILLED
from ablate.shared import signal_words
from ablate.training.attempt import RankLost

LONGEST = timedelta(days=30)  # who waits for a rank that lives waits for its host to kill it
WORD = 256  # bytes of rank 0's word
LOOK_S = 0.2  # between looks at the ranks
STOPPED_S = 3.0  # that a rank may be stopped before it counts as lost
PATIENCE_S = 30.0  # for the one that watches to say which rank broke a connection
WORDS, MEETING = 3, 4  # the files of a rank that was forked
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>

T = TypeVar("T")


class Ranks:
    """The interface of a rank to all ranks of its run. This class is a run's only rank: nothing is
    shared, and no other rank is asked."""

    rank, world = 0, 1

    def share(self, number: int) -> slice:
        """Return the slice of `number` items in a row that this rank takes."""
        return slice(self.rank * number // self.world, (self.rank + 1) * number // self.world)

    def gather(self, part: Tensor) -> Tensor:
        """Return all ranks' parts, the same number of rows of each, in the order of the ranks."""
        return part

    def gather_each(self, parts: list[Tensor]) -> list[Tensor]:
        """`gather` tensors of one shape, the same number of each rank."""
        return parts

    def gathered(self, parts: list[T]) -> list[T]:
        """Return all ranks' parts, in the order of the ranks."""
        return parts

    def summed(self, vector: Tensor) -> Tensor:
        """Return the sum over the ranks, added in a balanced binary tree."""
        return vector

    def tell(self, word: str) -> None:
        """Announce, as rank 0, to the other ranks what is next."""

    def hear(self) -> str:
        """Wait for rank 0's announcement and return it."""
        raise NotImplementedError


ALONE = Ranks()


class Group(Ranks):
    """A rank of several. Tensors are exchanged on the ranks' own devices."""

    def __init__(self, rank: int, world: int, meeting: Path, device: torch.device) -> None:
        """`meeting`: a file that all ranks name. Returns once all of them are there."""
        self.rank, self.world = rank, world
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this host
        backend = "nccl" if device.type == "cuda" else "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            backend,
            store=dist.FileStore(str(meeting), world),
            rank=rank,
            world_size=world,
            timeout=LONGEST,
        )
        # Words go between hosts' processes: no device waits for them.
        self._hosts = dist.group.WORLD
        if backend != "gloo":
            self._hosts = dist.new_group(backend="gloo", timeout=LONGEST)

    def gather(self, part: Tensor) -> Tensor:
        all_parts = part.new_empty(self.world * len(part), *part.shape[1:])
        with delayed_errors():
            dist.all_gather_into_tensor(all_parts, part.contiguous())
        return all_parts

    def gather_each(self, parts: list[Tensor]) -> list[Tensor]:
        return list(self.gather(torch.stack(parts)))

    def gathered(self, parts: list[T]) -> list[T]:
        parts_by_rank: list[list[T]] = [[] for _ in range(self.world)]
        with delayed_errors():
            dist.all_gather_object(parts_by_rank, parts, group=self._hosts)
        return [part for of_rank in parts_by_rank for part in of_rank]

    def summed(self, vector: Tensor) -> Tensor:
        """Return the sum over the ranks. Each rank adds up a slice, of all ranks in their order;
        then all ranks get all slices. So the volume is that of a ring, and the order is fixed,
        which an all_reduce leaves open."""
        size = len(vector)
        padded = torch.nn.functional.pad(vector, (0, -size % self.world))
        mine = torch.empty_like(padded)
        with delayed_errors():
            dist.all_to_all_single(mine, padded)
        parts = list(mine.view(self.world, -1))
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return self.gather(parts[0])[:size]

    def tell(self, word: str) -> None:
        self._broadcast(torch.frombuffer(bytearray(word.encode().ljust(WORD)), dtype=torch.uint8))

    def hear(self) -> str:
        word = torch.empty(WORD, dtype=torch.uint8)
        self._broadcast(word)
        return word.numpy().tobytes().decode().strip()

    def _broadcast(self, message: Tensor) -> None:
        with delayed_errors():
            dist.broadcast(message, 0, group=self._hosts)


@contextlib.contextmanager
def delayed_errors() -> Iterator[None]:
    """Delay the error of a broken connection within the block. Its cause is in another rank, which
    the watching thread reports as it ends this process. The error is raised only where that doesn't
    happen."""
    try:
        yield
    except RuntimeError:
        time.sleep(PATIENCE_S)
        raise


# --- Processes ------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """The loss of a rank: the exit code and the reason with which a worker would have left, and a
    line."""

    code: int
    reason: str
    line: str


class Children:
    """The other ranks as rank 0 sees them: processes forked from it before it uses a device or
    starts a thread.

    `live(group)` is what such a process does. `lost(loss)` is called, in a thread, when one of them
    ends early or is stopped, and does not return. `explain` returns the loss that an error means.
    """

    def __init__(
        self,
        world: int,
        device: Callable[[int], torch.device],
        live: Callable[[Ranks], None],
        lost: Callable[[Loss], NoReturn],
        explain: Callable[[Exception], Loss],
        unexplained_loss: Loss,
    ) -> None:
        """`device` returns the device of a rank; `unexplained_loss` is the loss of a rank that left
        no words, except for its line."""
        self._world = world
        self._lost = lost
        self._unexplained_loss = unexplained_loss
        self._is_over = False
        # The file where they meet has no name, so whatever kills them leaves nothing behind.
        self._meeting = os.memfd_create("ablate-ranks")
        self._pids: dict[int, int] = {}
        self._words: dict[int, int] = {}  # by rank: where its last words are read
        for rank in range(1, world):
            reader, writer = os.pipe()
            parent, pid = os.getpid(), os.fork()
            if not pid:
                join = partial(_join, live, rank, world, device)
                _live(parent, writer, self._meeting, explain, join)
            os.close(writer)
            self._pids[rank], self._words[rank] = pid, reader
        threading.Thread(target=self._watch, daemon=True).start()
        place = Path(f"/proc/self/fd/{self._meeting}")
        self.ranks: Ranks = Group(0, world, place, device(0)) if world > 1 else ALONE

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, in the order of the ranks."""
        return [*self._pids.values()]

    def end(self) -> None:
        """End the processes, which are needed no more. This process must end next: NCCL's groups
        stay, since their destruction waits for all ranks to take part in it (ncclCommFinalize)."""
        self._is_over = True
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os.close(self._meeting)

    def _watch(self) -> None:
        stopped = dict.fromkeys(self._pids, 0.0)
        while not self._is_over:
            for rank, pid in self._pids.items():
                with contextlib.suppress(ChildProcessError):
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended and not self._is_over:
                        self._lost(self._last_words(rank, os.waitstatus_to_exitcode(status)))
                stopped[rank] = stopped[rank] + LOOK_S if _is_stopped(pid) else 0.0
                if stopped[rank] > STOPPED_S and not self._is_over:
                    self._lost(self._loss_of(rank, "is stopped (SIGSTOP)"))
            time.sleep(LOOK_S)

    def _last_words(self, rank: int, code: int) -> Loss:
        words = os.read(self._words[rank], 1 << 16)
        if words:
            reported_loss = Loss(*json.loads(words))
            line = f"rank {rank} of {self._world}: {reported_loss.line}"
            return reported_loss._replace(line=line)
        if code < 0:
            loss = self._loss_of(rank, f"died ({signal_words(-code)})")
            return loss._replace(reason=RANK_KILLED)
        return self._loss_of(rank, f"died (exit code {code})")

    def _loss_of(self, rank: int, description: str) -> Loss:
        return self._unexplained_loss._replace(line=f"rank {rank} of {self._world} {description}")


def _join(
    live: Callable[[Ranks], None],
    rank: int,
    world: int,
    device: Callable[[int], torch.device],
) -> None:
    live(Group(rank, world, Path(f"/proc/self/fd/{MEETING}"), device(rank)))


def _live(
    parent: int,
    words: int,
    meeting: int,
    explain: Callable[[Exception], Loss],
    live: Callable[[], None],
) -> NoReturn:
    """Be a rank, in a process that was just forked: without its parent's lock, ignoring the signals
    that ask the parent to stop, and killed when the parent dies."""
    code = 1
    try:
        renew_threads()
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(code)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        fds = [fcntl.fcntl(file, fcntl.F_DUPFD, MEETING + 1) for file in (words, meeting)]
        words = os.dup2(fds[0], WORDS)
        os.dup2(fds[1], MEETING)
        os.closerange(MEETING + 1, 1024)
        live()
        code = 0
    except RankLost:  # rank 0 knows, too
        time.sleep(PATIENCE_S)
    except Exception as error:
        traceback.print_exc()
        os.write(words, json.dumps(explain(error)).encode())
    finally:
        os._exit(code)


def renew_threads() -> None:
    """Replace torch's thread pool, whose threads a fork doesn't copy, before anything computes.

    torch marks the pool in a forked child and replaces it at the next call of set_num_threads
    (caffe2/utils/threadpool/pthreadpool-cpp.cc). Autograd starts one thread for each visible GPU,
    all of which make that call at once: one releases the pool while another reads it, and the
    process aborts with "Invalid thread pool!".
    """
    torch.set_num_threads(torch.get_num_threads())


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return fields.split()[0] in ("T", "t")
    return False


def unequal(digests: Sequence[Sequence[int]], step: int) -> str | None:
    """Return a line that says which ranks' weights differ from the others'; None where all are
    equal. `digests` has, for each rank, numbers that are equal where the weights are."""
    kinds: dict[tuple[int, ...], list[int]] = {}
    for rank, digest in enumerate(digests):
        kinds.setdefault(tuple(digest), []).append(rank)
    if len(kinds) == 1:
        return None
    if len(digests) == 2:
        return f"ranks 0 and 1 of 2: weights differ at step {step}"
    majority = max(kinds.values(), key=len)
    few = [rank for rank in range(len(digests)) if rank not in majority]
    noun = "rank" if len(few) == 1 else "ranks"
    numbers = " and ".join(str(rank) for rank in few)
    return f"{noun} {numbers} of {len(digests)}: weights differ from the others' at step {step}"
