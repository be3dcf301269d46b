"""What modules take and return: which of it is saved, under which name, each array once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from watchglass.capture.arrays import ArrayInfo, is_array
from watchglass.capture.module_places import Place
from watchglass.capture.modules import Modules
from watchglass.capture.port import Port
from watchglass.capture.saving.nested_arrays import leaves_in
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import CapturedRecords
from watchglass.records import UNITS, ModuleKind, Role, UnitKind

#: Tags of inputs by the type of the module, as all frameworks call it.
_TAGS = {"Tanh": "tanh_input", "Sigmoid": "sigmoid_input"}
#: Tags of inputs.
INPUT_TAGS = ("model_input", "input_image", "input_sequence", "relu_input", *_TAGS.values())
#: By tag, the inputs beyond which the function is constant, as SageMaker Debugger documents them.
_LIMITS = {"tanh_input": (-9.4999, 9.4999), "sigmoid_input": (-23.0, 16.99999)}


class ModuleTensors:
    """Chooses and saves what modules take and return. For the training thread, while a step is due.

    Args:
        port: Where it goes.
        saving: Saves it; None for one that reads arrays of any framework.
        unit_axis: Finds the axis that counts the units of a module, of an array with this number of axes; None for
            none. By default the last of several.
    """

    def __init__(
        self,
        port: Port,
        saving: Saving | None = None,
        unit_axis: Callable[[Place, int], int | None] = lambda place, axes: axes - 1 if axes > 1 else None,
    ) -> None:
        self._port, self._plan, self._unit_axis = port, port.plan, unit_axis
        self._saving = saving or Saving(port.plan, port.ids, port.cost)
        # Arrays that modules have returned already, alive, so that their identities stay unique.
        self._seen: dict[int, tuple[Any, int]] = {}
        self._undo: Callable[[], None] | None = None
        port.detach_with(self.end)

    def observe(self, records: CapturedRecords, modules: Modules, model: Any) -> None:
        """Save what the modules of a model take and return from now on, up to :meth:`end`.

        An array that a module overwrites counts as the one that it was.

        Args:
            records: Records of a step that is due.
            modules: Who knows the modules.
            model: The model.
        """
        places = {id(module): place for module, place in modules.modules(model)}
        inputs_wanted = self._plan.wants(Role.INPUT) or any(map(self._plan.wants_tag, INPUT_TAGS))

        def entered(module: Any, arguments: Any) -> None:
            place = places.get(id(module))
            if place is not None and inputs_wanted:
                for path, array, about in self._arrays_in(arguments):
                    axes = len(about.shape)
                    tags = input_tags(place, path, axes, about.dtype, outermost=place.index == 0)
                    self.save(records, Role.INPUT, self.taken(place, path, array, axes, tags))

        def returned(module: Any, arguments: Any, output: Any) -> None:
            place = places.get(id(module))
            if place is not None and self._plan.wants(Role.OUTPUT):
                for path, array, about in self._arrays_in(output):
                    numbers = "float" in about.dtype or "complex" in about.dtype
                    item = self.returned(place, path, array, len(about.shape)) if numbers else None
                    if item is not None:
                        self.save(records, Role.OUTPUT, item)

        self.end()
        self._undo = modules.observe(model, self._port.guarded(entered), self._port.guarded(returned))

    def taken(self, place: Place, path: str, array: Any, axes: int, tags: tuple[str, ...]) -> Item:
        """What is saved of an argument of a module."""
        return Item(array, place.named("input", path), place, tags, self._unit_axis(place, axes))

    def returned(self, place: Place, path: str, array: Any, axes: int, version: int = 0) -> Item | None:
        """What is saved of a result of a module; None for nothing, or if another module has returned it.

        Args:
            place: The module.
            path: Where the array is in what the module returned.
            array: The array.
            axes: Number of its axes.
            version: How often it was overwritten, where that is possible.
        """
        is_model = place.index == 0
        seen = self._seen.get(id(array))
        if seen is not None and seen[1] == version and not (is_model and self._plan.wants_tag("model_output")):
            # A container returns the output of its last child; an overwritten array is a new one.
            return None
        tags = ("relu_output",) if place.kind is ModuleKind.RECTIFIER else ("model_output",) if is_model else ()
        item = Item(array, place.named("output", path), place, tags, self._unit_axis(place, axes))
        if self._saving.keep(Role.OUTPUT, item) is None:
            # Not marked as saved: the container that returns it may be wanted.
            return None
        self._seen[id(array)] = array, version
        return item

    def save(self, records: CapturedRecords, role: Role, item: Item) -> None:
        """Save it, with the units that are inactive, or that saturate the module."""
        tensor_id = self._saving.save(records, role, item)
        limits = limits_of(item.tags)
        if tensor_id is None or item.unit_axis is None or (limits is None and "relu_output" not in item.tags):
            return
        units = self._saving.arrays_of(item.tensor).units(item.tensor, item.unit_axis, limits)
        if units is not None:
            kind = UnitKind.INACTIVE if limits is None else UnitKind.SATURATED
            records.rows[UNITS].append((tensor_id, kind, units))

    def end(self) -> None:
        """The model has returned: observe nothing more, and keep no array alive."""
        self._seen = {}
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _arrays_in(self, value: Any) -> Iterator[tuple[str, Any, ArrayInfo]]:
        for path, leaf in leaves_in(value, is_array):
            if is_array(leaf):
                yield path, leaf, self._saving.arrays_of(leaf).describe(leaf)


def limits_of(tags: Iterable[str]) -> tuple[float, float] | None:
    """The inputs beyond which a module with an input of these tags is constant; None for one that is not."""
    return next((_LIMITS[tag] for tag in tags if tag in _LIMITS), None)


def input_tags(place: Place, path: str, axes: int, dtype: str, *, outermost: bool) -> tuple[str, ...]:
    """Tags of an argument of a module.

    Args:
        place: The module.
        path: Where the array is among the arguments.
        axes: Number of its axes.
        dtype: Name of its dtype.
        outermost: Whether the script calls this module.
    """
    tags: tuple[str, ...] = ()
    if outermost:
        tags = ("model_input",)
        if axes == 4 and "float" in dtype:
            tags += ("input_image",)
        elif axes == 2 and "float" not in dtype and "complex" not in dtype:
            tags += ("input_sequence",)
    tag = "relu_input" if place.kind is ModuleKind.RECTIFIER else _TAGS.get(place.module_type)
    return tags if tag is None or path != "0" else (*tags, tag)
