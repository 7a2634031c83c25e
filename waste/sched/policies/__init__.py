"""The eviction policies, by name. A policy is one module here, named as the policy, that calls `register`."""

from __future__ import annotations

from waste.sched.policies.base import EvictionPolicy
from waste.sched.registry import Registry

_registry: Registry[EvictionPolicy] = Registry(__name__, __path__, setting="cache.policy")

register = _registry.register
names = _registry.names
create = _registry.create
