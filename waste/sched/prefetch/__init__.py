"""The prefetch policies, by name. A policy is one module here, named as the policy, that calls `register`."""

from __future__ import annotations

from waste.sched.prefetch.base import PrefetchPolicy
from waste.sched.registry import Registry

_registry: Registry[PrefetchPolicy] = Registry(__name__, __path__, setting="prefetch.policy")

register = _registry.register
names = _registry.names
create = _registry.create
