"""Policies by name: one small module each, found in its package, so that adding one touches no other file."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Generic, TypeVar

from waste.errors import InputError

T = TypeVar("T")


class Registry(Generic[T]):
    """Factories of one kind of policy.

    package: where the modules lie, `path` its `__path__`; a module is named as its policy and registers it.
    setting: the setting key that names one, for error messages.
    """

    def __init__(self, package: str, path: list[str], *, setting: str) -> None:
        self._package = package
        self._path = path
        self._setting = setting
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, name: str, factory: Callable[..., T]) -> None:
        """Make a policy known."""
        self._factories[name] = factory

    def names(self) -> list[str]:
        """Every policy there is, sorted."""
        return sorted(self._factories.keys() | self._module_names())

    def create(self, name: str, **options: object) -> T:
        """A new policy, made with what all of its kind take. Raises InputError for an unknown name."""
        if name not in self._factories and name in self._module_names():
            import_module(f"{self._package}.{name}")
        if name not in self._factories:
            near = get_close_matches(name, self.names(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"unknown {self._setting} {name!r}; expected one of {', '.join(self.names())}{hint}")
        return self._factories[name](**options)

    def _module_names(self) -> set[str]:
        return {module.name for module in pkgutil.iter_modules(self._path)} - {"base", "contract"}
