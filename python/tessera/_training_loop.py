"""A training loop that survives: resumes, saves as it goes, heeds SIGTERM."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from tessera import _C


class TrainingLoop:
    """Steps from the latest whole checkpoint on, saved as they go.

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    loop = checkpoint.TrainingLoop("run", state, total=10_000, every=100)
    for step in loop:
        train(batch(step))

    On SIGTERM, to whichever rank, it saves after the step under way and ends;
    `preempted` is then true. Under `torchrun --max-restarts` a rank that dies
    costs the steps since the last checkpoint. Every rank runs it. Generators
    are restored. One small message a step is exchanged.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        state: Any,
        *,
        total: int,
        every: int = 100,
        keep: int = 2,
        asynchronous: bool = False,
    ) -> None:
        if total < 0 or every < 1 or keep < 0:
            raise ValueError(
                "[TrainingLoop] expected a total of 0 or more steps, a "
                "checkpoint every 1 or more, and 0 (all) or more to keep, got "
                f"{total}, {every} and {keep}"
            )
        if not os.fspath(root):
            raise ValueError(
                "[TrainingLoop] expected the directory of a run, got an empty "
                "path"
            )
        self.root = root
        self.state = state
        self.total = total
        self.every = every
        self.keep = keep
        self.asynchronous = asynchronous
        self.preempted = False
        self._terminated = False

    def _note(self, signum: int, frame: Any) -> None:
        self._terminated = True

    def __iter__(self) -> Iterator[int]:
        from tessera import checkpoint

        found = checkpoint.load_latest(self.root, self.state)
        step = 0 if found is None else found.step
        pending = None
        # Only the main thread may handle signals.
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, self._note) if main else None
        try:
            while step < self.total and not self.preempted:
                yield step
                step += 1
                self.preempted = _C.any_rank(self._terminated)
                last = self.preempted or step == self.total
                if last or step % self.every == 0:
                    pending = checkpoint.save(
                        self.root,
                        self.state,
                        step=step,
                        keep=self.keep,
                        asynchronous=self.asynchronous,
                    )
        finally:
            if main:
                signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        if self.asynchronous and pending is not None:
            pending.wait()
