"""``lpsgd optimizers``: what can be trained."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpsgd.lab.cli.options import AsJson

if TYPE_CHECKING:
    from lpsgd.peers.description import OptimizerSpec


def optimizers(
    name: Annotated[
        str | None, typer.Argument(help="One optimizer, or an import path. [default: all]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the optimizers: rule, state, source, settings with defaults.

    Where `lpsgd train` and `lpsgd compare` have searched defaults for a data set, these come last.

    **Example**

        lpsgd optimizers lpsgdm
    """
    from lpsgd.lab.defaults import searched
    from lpsgd.lab.errors import UserError
    from lpsgd.lab.store.disk.jsonio import encode
    from lpsgd.peers import registry

    try:
        specs = [registry.get(found) for found in ([name] if name else registry.names())]
    except ValueError as error:
        raise UserError(str(error)) from error
    rows = [
        {
            "name": spec.name,
            "rule": spec.rule,
            "settings": _plain(spec),
            "searched": searched(spec.name),
            "state": spec.state,
            "source": spec.source,
            "closure": spec.needs_closure,
            "create_graph": spec.create_graph,
        }
        for spec in specs
    ]
    if as_json:
        print(json.dumps(encode(rows), indent=2))
    else:
        _print(rows)


def _plain(spec: OptimizerSpec) -> dict[str, Any]:
    """The settings' defaults as JSON can hold them; an imported class may have anything."""
    plain = (bool, int, float, str, list, tuple, type(None))
    shown = {key: v if isinstance(v, plain) else str(v) for key, v in spec.settings.items()}
    return shown | dict.fromkeys(spec.required, "required")


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for row in rows:
        console.print(row["name"], style="bold", markup=False)
        for what in ("rule", "state", "source"):
            console.print(f"  {what:<9} {row[what]}", markup=False)
        console.print(f"  settings  {_pairs(row['settings'])}", markup=False)
        for k, (setting, found) in enumerate(row["searched"].items()):
            what = "searched" if k == 0 else ""
            console.print(f"  {what:<9} {setting}: {_pairs(found)}", markup=False)


def _pairs(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items())
