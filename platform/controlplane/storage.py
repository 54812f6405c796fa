"""Static files under names with a hash of their content, so that browsers keep them for ever."""

from typing import Any, Final

from django.conf import settings
from django.contrib.staticfiles.storage import ManifestStaticFilesStorage
from servestatic.storage import CompressedManifestStaticFilesStorage

_CSS: Final = ManifestStaticFilesStorage.patterns[0]
_IMPORTS: Final = ManifestStaticFilesStorage._js_module_import_aggregation_patterns[1]


class StaticFiles(CompressedManifestStaticFilesStorage):
    """Also renames what our own JavaScript modules import. Until `collectstatic`: plain names.

    What vendors' scripts import or name as their source map is left alone: it need not exist.
    """

    manifest_strict = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        own = sorted(p.name for p in (settings.BASE_DIR / "static").iterdir() if p.is_dir())
        self.patterns = (_CSS, *((f"{folder}/*.js", _IMPORTS) for folder in own))
        super().__init__(*args, **kwargs)

    def url(self, name: str | None, force: bool = False) -> str:
        if not self.hashed_files and name is not None:
            return f"{self.base_url}{name}"
        return super().url(name, force)
