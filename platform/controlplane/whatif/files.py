"""The traces and measured costs that a scenario may name: plain names, in a few folders alone."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from django.conf import settings

from controlplane.whatif.values import Scenario, WhatIfRefused

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
"""Nobody may have the server read a file elsewhere."""
SECTIONS: Final = ("workload", "costs")
"""Those with a file."""


def folders() -> tuple[Path, ...]:
    """Returns where files are looked for: this installation's own first, then Ferry's."""
    return (Path(settings.WHATIF_DIR), Path(settings.BASE_DIR, "scenarios", "traces"))


def names(suffix: str) -> list[str]:
    """Returns the files that may be named, by their ending."""
    found = {path.name for folder in folders() for path in folder.glob(f"*{suffix}")}
    return sorted(name for name in found if NAME.fullmatch(name))


def with_paths(scenario: Scenario) -> Scenario:
    """Returns the scenario with each file's path in place of its name.

    Raises: WhatIfRefused for what is no plain name.
    """
    changed = dict(scenario)
    for section in SECTIONS:
        values = scenario.get(section)
        name = values.get("file") if isinstance(values, Mapping) else None
        if not name:
            continue
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise WhatIfRefused(
                "expected the name of a file in the folder for what-if runs, without a path",
                field=f"{section}.file",
            )
        changed[section] = {**scenario[section], "file": str(_find(name))}
    return changed


def without_paths(words: str) -> str:
    """Returns a text without the folders: where this server's files lie is nobody's business."""
    for folder in folders():
        words = words.replace(f"{folder}/", "")
    return words


def _find(name: str) -> Path:
    """Returns the file, or where it would be."""
    places = [folder / name for folder in folders()]
    return next((place for place in places if place.is_file()), places[0])
