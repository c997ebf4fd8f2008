"""One plugin in words, from its class alone: what ``plugins list`` and ``plugins info`` tell."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import msgspec

    from doorbuster.tiers import Bound

__all__ = ["SURVIVES", "describe", "origin"]

SURVIVES: Final[Mapping[str, str]] = {
    "database": "whatever the commit of the ledger's database survives",
    "quorum": "a crash and power loss of its host, and as a rule the loss of one host",
    "host": "a crash and power loss of its host",
    "relaxed": "a crash of its process; power loss may lose about 2 s",
    "none": "nothing",
}
"""What ACCEPTED survives, by promise (design: promises)."""

_MARKS: Final = re.compile(r"(?::\w+:)?`+~?([^`]*)`+")
_RULES: Final = re.compile(r"\s*\([^()]*(?:\b[A-Z]\d+\b|\w\.md\b|\bdesign:)[^()]*\)")
_STAGES: Final = ("filter", "limit", "deduct", "enqueue", "persist", "compensate")
_JOURNALS: Final = ("ledger", "stream")
_OPTIONAL: Final[Mapping[str, Sequence[str]]] = {
    "router": ("places",),
    "holder": ("places", "debit", "count", "holds", "adopt", "push"),
    "journal": ("places", "debit", "count", "holds", "adopt", "push"),
    "persist": ("void",),
}


def origin(point: EntryPoint) -> dict[str, str]:
    """Where an installed plugin comes from: its class, and its distribution with version."""
    distribution = point.dist
    named = f"{distribution.name} {distribution.version}" if distribution else "unknown"
    return {"class": point.value, "distribution": named}


def describe(point: EntryPoint) -> dict[str, Any]:
    """Describe one plugin from its class, without building it.

    Raises:
        ConfigError: it cannot be imported; the message says what to install.
    """
    from doorbuster.cli.fitting import problems
    from doorbuster.hookspecs import Delivery
    from doorbuster.loading import load_class
    from doorbuster.tiers import Bound

    cls = load_class(point.name)
    hooks = _hooks(cls)
    delivery = getattr(cls, "delivery", None)
    stages = [stage for stage in _STAGES if stage in hooks]
    if isinstance(delivery, Delivery) and "enqueue" not in stages:
        stages.append("enqueue")  # only a broker has methods of its own
    bound = Bound(
        point.name, point.name, None, cls, {hook: getattr(cls, hook) for hook in hooks}, ""
    )
    gate = "filter" in hooks or "limit" in hooks
    return {
        "name": point.name,
        "summary": _summary(cls, point.name),
        "stages": stages,
        "tier": str(bound.tier) if "deduct" in hooks else None,
        "delivery": delivery.value if isinstance(delivery, Delivery) else None,
        "promise": _promises(bound) if "deduct" in hooks else None,
        "on_fault": str(getattr(cls, "on_fault", "closed")) if gate else None,
        "hooks": hooks,
        "not_offered": _not_offered(bound),
        "problems": problems(cls, bound),
        "options": _options(getattr(cls, "Options", None)),
        **origin(point),
    }


def _promises(bound: Bound) -> dict[str, str | None]:
    """What ACCEPTED survives with this plugin as deduct, by journal; ``None``: not possible."""
    from doorbuster.tiers import promise_of

    return {journal: promise_of(bound, journal, in_memory=False) for journal in _JOURNALS}


def _not_offered(bound: Bound) -> list[dict[str, str]]:
    """The optional hooks of its kind that it lacks, each with what that costs."""
    from doorbuster.tiers import COSTS

    kinds = [str(bound.tier)] if "deduct" in bound.hooks else []
    kinds += ["persist"] if "persist" in bound.hooks else []
    return [
        {"hook": hook, "costs": COSTS[hook]}
        for kind in kinds
        for hook in _OPTIONAL[kind]
        if hook not in bound.hooks
    ]


def _summary(cls: type[Any], name: str) -> str:
    """The first paragraph of a class's docstring, as plain words, without the name before it."""
    text = (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ")
    return _plain(text).removeprefix(f"{name}: ")


def _plain(text: str) -> str:
    """For operators: without the marks of markup, and without the codes of rules in brackets."""
    return _RULES.sub("", _MARKS.sub(r"\1", text))


def _hooks(cls: type[Any]) -> list[str]:
    """Names of the methods that carry the mark of ``@hookimpl``."""
    from doorbuster.hookspecs import PROJECT

    return [name for name in dir(cls) if hasattr(getattr(cls, name, None), f"{PROJECT}_impl")]


def _options(kind: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    import msgspec

    from doorbuster.settings.report import expectation

    if kind is None:
        return []
    docs = _field_docs(kind)
    found = []
    for field in msgspec.structs.fields(kind):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found.append(
            {
                "name": field.name,
                "takes": expectation(field.type),
                "required": field.required,
                "default": None if field.required else msgspec.to_builtins(default),
                "doc": docs.get(field.name, ""),
            }
        )
    return found


def _field_docs(kind: type[Any]) -> Mapping[str, str]:
    """The texts that stand under the fields of a class; none when its source is not there."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, SyntaxError, TypeError):
        return {}
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef)] or ([],)
    docs = {}
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            docs[field.target.id] = _plain(" ".join(str(text.value.value).split()))
    return docs
