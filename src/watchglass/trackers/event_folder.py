"""A folder of event files, by TensorBoard's own records and framing."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto import (
    attr_value_pb2,
    event_pb2,
    graph_pb2,
    node_def_pb2,
    summary_pb2,
    tensor_pb2,
    types_pb2,
)
from tensorboard.plugins.histogram import metadata as histogram_plugin
from tensorboard.plugins.text import metadata as text_plugin
from tensorboard.summary.writer.record_writer import RecordWriter

from watchglass.trackers.module_graph import Node

#: What the first event of a file says.
_VERSION = "brain.Event:2"
#: Numbers of the files of this process, which may begin two in a second.
_files = itertools.count()


class EventFolder:
    """A folder of event files: TensorBoard shows it as one run. For one thread.

    A file is begun at the first event. Of a folder TensorBoard follows the newest file only, so one process writes it.
    TensorBoard's own writer of files would write in a thread, which prints a traceback where the disk is full.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: RecordWriter | None = None
        self._failed: OSError | None = None
        self.scalars = self.histograms = 0  #: How many were written.

    def start(self, step: int, wall_s: float) -> None:
        """Begin an attempt: TensorBoard drops what the folder has from this step on."""
        started = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(wall_time=wall_s, step=step, session_log=started))

    def add(
        self,
        step: int,
        wall_s: float,
        scalars: Iterable[tuple[str, float]] = (),
        histograms: Iterable[tuple[str, NDArray[np.float32]]] = (),
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """Write all of a step as one event, because its checksum takes longest.

        Args:
            step: The step.
            wall_s: Its wall time, in seconds since 1970.
            scalars: Tags and values.
            histograms: Tags and buckets, float32[k, 3]: left, right, count.
            texts: Texts in Markdown, by tag.
        """
        event = event_pb2.Event(wall_time=wall_s, step=step)
        add, before = event.summary.value.add, self.scalars
        for tag, value in scalars:
            add(tag=tag, simple_value=value)
            self.scalars += 1
        for tag, buckets in histograms:
            event.summary.value.append(_histogram(tag, buckets))
            self.histograms += 1
        for tag, text in (texts or {}).items():
            event.summary.value.append(_text(tag, text))
        if self.scalars > before or len(event.summary.value):
            self._add(event)

    def add_graph(self, nodes: Sequence[Node], wall_s: float) -> None:
        """Write a graph of modules."""
        graph = graph_pb2.GraphDef(node=[_node(node) for node in nodes])
        graph.versions.producer = 22
        self._add(event_pb2.Event(wall_time=wall_s, graph_def=graph.SerializeToString()))

    def flush(self) -> None:
        """Write everything to the file."""
        with self._writing():
            if self._writer is not None:
                self._writer.flush()

    def close(self) -> None:
        """Write the rest, and close the file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with suppress(OSError):  # that was raised already
                writer.close()

    def _add(self, event: Any) -> None:
        with self._writing():
            if self._writer is None:
                self._path.mkdir(parents=True, exist_ok=True)
                place = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.{next(_files)}"
                self._writer = RecordWriter((self._path / f"events.out.tfevents.{place}").open("xb"))
                self._writer.write(event_pb2.Event(wall_time=time.time(), file_version=_VERSION).SerializeToString())
            self._writer.write(event.SerializeToString())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What was refused once is refused: behind a record that is not whole, TensorBoard reads no other."""
        if self._failed is not None:
            raise self._failed
        try:
            yield
        except OSError as error:
            self._failed = error
            raise


def _histogram(tag: str, buckets: NDArray[np.float32]) -> Any:
    shape = tensor_pb2.TensorProto().tensor_shape
    for size in buckets.shape:
        shape.dim.add(size=size)
    tensor = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_FLOAT, tensor_shape=shape, tensor_content=buckets.astype("<f4").tobytes()
    )
    return summary_pb2.Summary.Value(
        tag=tag, tensor=tensor, metadata=histogram_plugin.create_summary_metadata(None, None)
    )


def _text(tag: str, text: str) -> Any:
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode(errors="replace")])
    tensor.tensor_shape.dim.add(size=1)
    return summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=text_plugin.create_summary_metadata(None, None))


def _node(node: Node) -> Any:
    found = node_def_pb2.NodeDef(name=node.name, op=node.kind, input=node.inputs)
    if node.shape is not None:
        shapes = attr_value_pb2.AttrValue()
        shape = shapes.list.shape.add()
        for size in node.shape:
            shape.dim.add(size=size)
        found.attr["_output_shapes"].CopyFrom(shapes)
    return found
