"""How the ranks of a job find each other again after some of them died and were started anew.

torchrun keeps one store through all restarts of a job, so it still holds what dead processes wrote, their addresses
too. Restarts cannot tell old from new: every machine counts its own, and one that came back begins at zero. Here the
first rank gives each attempt a name, and answers whoever asks for it. Words of the dead are answered too, but nobody
confirms the answer, and the first rank goes on when every rank has.
"""

import time
from collections.abc import Iterator
from uuid import uuid4

import torch.distributed as dist

from rattle.errors import RattleError

PATIENCE = 600.0  # seconds; torchrun's own for a machine that is missing


def meet(store: dist.Store, rank: int, ranks: int) -> str:
    """The name of this attempt, the same for all its ranks; raises RattleError if one does not come."""
    return invite(store, ranks) if rank == 0 else ask(store, rank)


def invite(store: dist.Store, ranks: int) -> str:
    """The first rank's part: answer the others until each has confirmed."""
    name, asked = uuid4().hex, dict.fromkeys(range(1, ranks), "")
    for _ in turns("the other ranks did not come"):
        for rank, before in list(asked.items()):
            if (word := read(store, f"ask{rank}")) != before:
                store.set(f"answer{rank}", f"{word} {name}")
                asked[rank] = word
            if read(store, f"confirm{rank}") == name:
                del asked[rank]
        if not asked:
            break
    return name


def ask(store: dist.Store, rank: int) -> str:
    """The part of every other rank: ask with a word of its own, and confirm the answer to it."""
    word, name = uuid4().hex, ""
    store.set(f"ask{rank}", word)
    for _ in turns("the first rank did not answer"):
        to, _, name = read(store, f"answer{rank}").partition(" ")
        if to == word:
            store.set(f"confirm{rank}", name)
            break
    return name


def turns(trouble: str) -> Iterator[None]:
    """Turns of a wait, many a second; RattleError when patience is at an end."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        yield
        time.sleep(0.02)
    raise RattleError(f"{trouble} within {PATIENCE:.0f} s: start the job again with --resume")


def read(store: dist.Store, key: str) -> str:
    """What the store holds, empty if nothing: its own `get` would wait for it."""
    return store.get(key).decode() if store.check([key]) else ""
