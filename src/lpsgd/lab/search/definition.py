"""What a sweep is: everything that decides its result, kept in its folder as sweep.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpsgd.lab.errors import UserError
from lpsgd.lab.labels import file_safe
from lpsgd.lab.plan import Task, resolve
from lpsgd.lab.recipe import to_json
from lpsgd.lab.search.method import Search
from lpsgd.lab.search.space import Competitor
from lpsgd.lab.search.storage import StorageUrl
from lpsgd.lab.store.disk.files import writing
from lpsgd.lab.store.disk.jsonio import read_json, write_json

if TYPE_CHECKING:
    from lpsgd.lab.recipe import Recipe
    from lpsgd.lab.search.proposals import TrialRequest

# Of the recipe, what each trial decides for itself.
OWN_FIELDS = ("optimizer", "settings", "closure", "create_graph")


@dataclass(frozen=True)
class Sweep:
    """What is searched and how, in which folder. ``values`` is the recipe that trials share."""

    values: Mapping[str, Any]
    competitors: Sequence[Competitor]
    how: Search
    out: Path | None = None

    @property
    def name(self) -> str:
        """Differs between different sweeps: what a shared storage knows this one by."""
        text = json.dumps(self.definition(), sort_keys=True)
        recipe = self.recipe_of_all()
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"sweep-{file_safe(f'{recipe.dataset}-{recipe.model}')}-{digest}"

    @property
    def folder(self) -> Path:
        """Where everything goes."""
        return self.out or Path("runs") / self.name

    def recipe_of_all(self) -> Recipe:
        """What trials have in common, with some optimizer."""
        return resolve({**self.values, "optimizer": self.competitors[0].optimizer})

    def recipe(self, competitor: Competitor, settings: Mapping[str, Any]) -> Recipe:
        """The recipe of one trial with these settings."""
        own = {"optimizer": competitor.optimizer, "settings": dict(settings)}
        return resolve({**self.values, **own})

    def tasks(self, label: str, request: TrialRequest) -> list[Task]:
        """The runs of one trial of the competitor ``label``: one for each seed."""
        competitor = next(c for c in self.competitors if c.label == label)
        folder = self.folder / folder_name(label, request.number)
        first = self.recipe(competitor, competitor.settings(request.params))
        recipes = [first.with_changes(seed=first.seed + k) for k in range(self.how.seeds)]
        name = f"{label} trial {request.number}"
        return [Task(name, recipe, folder / f"seed-{recipe.seed}") for recipe in recipes]

    def definition(self) -> dict[str, Any]:
        """Everything that decides the result, as plain values."""
        shared = to_json(self.recipe_of_all())
        found = {
            "recipe": {name: v for name, v in shared.items() if name not in OWN_FIELDS},
            "search": {k: v for k, v in asdict(self.how).items() if v is not None},
            "space": {c.label: c.to_json() for c in self.competitors},
        }
        plain: dict[str, Any] = json.loads(json.dumps(found))
        return plain


def folder_name(label: str, number: int) -> str:
    """Where a trial is trained, within the sweep's folder."""
    return f"trials/{label}/{number:04d}"


def write_definition(sweep: Sweep, url: StorageUrl, command: str) -> None:
    """Write sweep.json, or make sure that the one in the folder says the same."""
    path = sweep.folder / "sweep.json"
    wanted = sweep.definition()
    if path.exists():
        try:
            found = read_json(path)["definition"]
        except (KeyError, TypeError, UserError) as error:
            raise UserError(f"{path} cannot be read ({error}): choose another folder") from None
        if found != wanted:
            raise UserError(
                f"{sweep.folder} belongs to another sweep: "
                f"{'; '.join(_differences(found, wanted))}. Nothing was changed; choose another "
                "folder with --out"
            )
        return
    if sweep.folder.is_dir() and any(p for p in sweep.folder.iterdir() if p.name[0] != "."):
        raise UserError(
            f"{sweep.folder} holds other files and no sweep.json: choose another folder"
        )
    with writing(sweep.folder):
        write_json(
            path, {"version": 1, "definition": wanted, "storage": url.shown, "command": command}
        )


def _differences(found: Any, wanted: Any, where: str = "") -> list[str]:
    """In words, where two plain values differ."""
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return [f"{where} is {found!r} there and {wanted!r} here"] if found != wanted else []
    keys = [*wanted, *(key for key in found if key not in wanted)]
    return [
        line
        for key in keys
        for line in _differences(
            found.get(key, "absent"), wanted.get(key, "absent"), f"{where} {key}".strip()
        )
    ]
