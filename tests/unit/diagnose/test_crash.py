"""The exception that ended a run becomes a diagnosis: what happened, where, with which figures, and what to try."""

from __future__ import annotations

import pytest

from watchglass.diagnose.crash import with_crash
from watchglass.records import Diagnosis, Failure, Severity
from watchglass.rules import cause_of_crash

#: Messages as Python, PyTorch and its libraries word them, by the id of the reason.
MESSAGES = [
    ("index_beyond_table", "IndexError", "index out of range in self"),
    ("target_out_of_range", "IndexError", "Target 10 is out of bounds."),
    ("index_beyond_size_on_device", "RuntimeError", "CUDA error: device-side assert triggered"),
    ("out_of_memory_on_device", "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB."),
    ("out_of_memory", "RuntimeError", "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
     "allocate memory: you tried to allocate 4503599627370496 bytes."),
    ("out_of_memory", "MemoryError", "Unable to allocate 8.00 PiB for an array with shape (1 << 50,)"),
    ("dtypes_differ", "RuntimeError", "mat1 and mat2 must have the same dtype, but got Half and Float"),
    ("dtypes_differ", "RuntimeError", "expected scalar type Long but found Float"),
    ("dtypes_differ", "RuntimeError", "Expected floating point type for target with class probabilities, got Long"),
    ("dtypes_differ", "RuntimeError", '"log_softmax_lastdim_kernel_impl" not implemented for \'Long\''),
    ("devices_differ", "RuntimeError", "Expected all tensors to be on the same device, but found at least two devices"),
    ("shapes_differ", "RuntimeError", "mat1 and mat2 shapes cannot be multiplied (8x12 and 8x16)"),
    ("shapes_differ", "RuntimeError", "The size of tensor a (3) must match the size of tensor b (4) at dimension 1"),
    ("shapes_differ", "ValueError", "Expected input batch_size (8) to match target batch_size (4)."),
    ("graph_used_twice", "RuntimeError", "Trying to backward through the graph a second time (or directly access ...)"),
    ("scaler_not_updated", "RuntimeError", "unscale_() is being called after step()."),
    ("scaler_not_updated", "RuntimeError", "unscale_() has already been called on this optimizer since the last "
     "update()."),
    ("scaler_not_updated", "RuntimeError", "step() has already been called since the last update()."),
    ("changed_in_place", "RuntimeError", "one of the variables needed for gradient computation has been modified by an "
     "inplace operation: [torch.FloatTensor [8, 10]]"),
    ("no_gradient", "RuntimeError", "element 0 of tensors does not require grad and does not have a grad_fn"),
    ("value_not_finite", "AssertionError", "loss is NaN"),
    ("value_not_finite", "ValueError", "Input contains NaN."),
    ("loader_worker", "KeyError", "Caught KeyError in DataLoader worker process 0: KeyError: 'label'"),
    ("file_missing", "FileNotFoundError", "[Errno 2] No such file or directory: 'data.pt'"),
    ("disk_full", "OSError", "[Errno 28] No space left on device"),
    ("key_missing", "KeyError", "'label'"),
    ("assertion", "AssertionError", ""),
    ("", "ValueError", "bad batch"),
    ("", "ValueError", "unknown resource 'nanny'"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "kind", "message"), MESSAGES)
def test_the_reason_that_an_exception_names(cause: str, kind: str, message: str) -> None:
    found = cause_of_crash(kind, message)
    assert (found.id if found is not None else "") == cause
    assert found is None or (found.what_to_try and found.explanation and not found.title.endswith("."))


def test_a_crash_is_a_diagnosis_with_step_module_and_figures() -> None:
    failure = Failure(
        "exception", "IndexError", "index out of range in self", "train.py", 13, "return self.tokens(x)",
        module="tokens (Embedding)", figures="indices go from 60 to 158, the table has 100 rows",
    )  # fmt: skip
    (found,) = with_crash((), failure, 12)
    assert found.headline == (
        "An index is beyond the table of an embedding, after 12 training steps: indices go from 60 to 158, the table "
        "has 100 rows"
    )
    assert (found.severity, found.step, found.subject) == (Severity.ERROR, 12, "tokens (Embedding)")
    assert found.what_to_try[0].startswith("Make num_embeddings larger")
    assert found.causes[0].evidence[1] == "train.py:13: return self.tokens(x)"


def test_of_an_allocation_the_size_is_the_figure() -> None:
    failure = Failure("exception", "RuntimeError", "can't allocate memory: you tried to allocate 5000000000000 bytes.")
    (found,) = with_crash((), failure, 0)
    assert found.headline == (
        "The machine has run out of memory, before the first step had ended: an allocation of 5 TB failed"
    )


def test_it_comes_behind_errors_that_may_have_led_to_it_and_before_the_rest() -> None:
    def diagnosis(severity: Severity) -> Diagnosis:
        return Diagnosis((), (), severity, 3, "", severity.value, ())

    failure = Failure("exception", "AssertionError", "loss is NaN")
    found = with_crash([diagnosis(Severity.ERROR), diagnosis(Severity.WARNING)], failure, 20)
    assert [each.headline.split(" ")[0] for each in found] == ["error", "The", "warning"]


@pytest.mark.parametrize("kind", ["interrupt", "exit", "signal", "lost"])
def test_other_ends_are_no_diagnosis(kind: str) -> None:
    assert with_crash((), Failure(kind, "KeyError", "'a'"), 3) == ()
    assert with_crash((), None, 3) == ()
