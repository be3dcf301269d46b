"""The programs: what is slow in each, and which causes are right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """A slow program; its fast twin is the same file with another argument.

    Attributes:
        name: File below ``programs/``, without its ending.
        slow: What is slow in it.
        causes: Causes that are right as the first one.
        options: Options of ``watchglass run``, after the rules.
        ranks: Number of processes.
        needs_gpu: Why it shows on a machine with a GPU only, so that it is not run here; "" if it shows on any.
    """

    name: str
    slow: str
    causes: frozenset[str]
    options: tuple[str, ...] = ()
    ranks: int = 1
    needs_gpu: str = ""


#: The default window of a minute, and captures that are rare, are for runs of hours; these programs train for seconds.
_SHORT = ("--rules", "MemoryLeak:window_s=1", "--sample-interval", "0.1", "--save-interval", "4")

MEMBERS = (
    Member("loader_too_slow", "the loader is too slow", frozenset({"loader_too_slow"})),
    Member("too_many_workers", "too many loader workers", frozenset({"loader_workers_do_not_fit"})),
    Member("tiny_batch", "a tiny batch", frozenset({"batch_small_for_machine"}), ("--save-interval", "8")),
    Member("synchronizing", "the script synchronises in every step", frozenset({"waits_for_device"}),
           needs_gpu="on a host torch.cuda.synchronize waits for nothing"),
    Member("item_in_the_loop", "`.item()` for each element of a batch", frozenset({"numbers_read_one_by_one"})),
    Member("preprocessing_in_the_main_process", "samples are computed in the process that trains",
           frozenset({"loader_without_workers"})),
    Member("augmenting_in_the_loop", "samples are augmented in the training loop",
           frozenset({"script_busy_in_each_step"})),
    Member("disk_bound", "each batch is read from the disk again",
           frozenset({"loader_without_workers", "loader_too_slow"})),
    Member("kept_graphs", "memory leak by kept graphs", frozenset({"graphs_kept"}), _SHORT),
    Member("growing_list", "a Python list that grows", frozenset({"python_objects_kept"}), _SHORT),
    Member("garbage_collection", "garbage collections", frozenset({"garbage_collection"})),
    Member("slow_checkpoints", "checkpoints", frozenset({"checkpoints_stop_training"})),
    Member("slow_rank", "one slow rank of two", frozenset({"rank_with_more_to_do", "slow_rank"}), ranks=2),
)  # fmt: skip
