"""Numbers of models: one count for all frameworks of a process."""

from __future__ import annotations

import weakref


class ModelNumbers:
    """Counts the models of a port, from 0, whichever framework they are of. For the training thread."""

    def __init__(self) -> None:
        self._given = 0
        # By identity, models that are objects: another framework may train the same one.
        self._known: dict[int, tuple[weakref.ref[object], int]] = {}

    def new(self) -> int:
        """A number that no model has."""
        self._given += 1
        return self._given - 1

    def known(self, model: object) -> int | None:
        """The number that was given to a model; None for none."""
        found = self._known.get(id(model))
        return None if found is None else found[1]

    def give(self, model: object, number: int) -> None:
        """Give a model this number."""
        key = id(model)
        self._known[key] = weakref.ref(model, lambda _: self._known.pop(key, None)), number

    def in_facts(self, number: int) -> int | None:
        """The number of a model in facts: None where there is one."""
        return number if self._given > 1 else None


class FrameworkNumbers:
    """The numbers of the models of one framework. For the training thread.

    Args:
        all_models: The numbers of all models.
    """

    def __init__(self, all_models: ModelNumbers) -> None:
        self._all = all_models
        self._own: set[int] = set()
        self._first: int | None = None

    @property
    def first(self) -> int:
        """The number of its first model, which may not be known yet."""
        if self._first is None:
            self._first = self._all.new()
        return self._first

    def new(self, model: object = None) -> int:
        """The number of a model that it has not had: that which another framework has given it, else a new one.

        Args:
            model: The model, if that is an object with an identity.
        """
        number = None if model is None else self._all.known(model)
        if number is None or number in self._own:
            number = self._all.new() if self._own else self.first
        if self._first is None:
            self._first = number
        self._own.add(number)
        if model is not None:
            self._all.give(model, number)
        return number

    def in_facts(self, number: int) -> int | None:
        """See :meth:`ModelNumbers.in_facts`."""
        return self._all.in_facts(number)
