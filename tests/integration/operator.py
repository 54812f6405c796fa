"""An operator who is logged in, and uses the fleet's API."""

from collections.abc import Callable
from typing import Any

import httpx

from tests.integration.installation import Installation, wait_for

USERNAME = "operator"
API = "/api/v1"


class Operator:
    """One session. Use it in a `with`."""

    def __init__(self, installation: Installation) -> None:
        self._http = httpx.Client(base_url=installation.url, timeout=60)
        page = self._http.get("/login/")
        assert page.status_code == 200, page.text
        fields = {
            "username": USERNAME,
            "password": installation.login["password"],
            "csrfmiddlewaretoken": self._http.cookies["csrftoken"],
        }
        answer = self._http.post("/login/", data=fields, headers=self._referer)
        assert answer.status_code == 302, "the first login works"

    def __enter__(self) -> "Operator":
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str) -> dict[str, Any]:
        answer = self._http.get(API + path, params=query)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def open(self, path: str) -> httpx.Response:
        """Opens a page, or whatever the path leads to."""
        return self._http.get(path, follow_redirects=True)

    @property
    def session_id(self) -> str:
        return self._http.cookies["sessionid"]

    def post(self, path: str, body: dict[str, object]) -> httpx.Response:
        headers = self._referer | {"X-CSRFToken": self._http.cookies["csrftoken"]}
        return self._http.post(API + path, json=body, headers=headers)

    def change_pool(self, name: str, **changes: object) -> None:
        """Changes a pool's row, whatever version it has."""
        headers = self._referer | {"X-CSRFToken": self._http.cookies["csrftoken"], "If-Match": "*"}
        answer = self._http.patch(f"{API}/pools/{name}", json=changes, headers=headers)
        assert answer.status_code == 200, answer.text

    def remove_pool(self, name: str) -> None:
        """Switches a pool off and removes it."""
        self.change_pool(name, scaling_mode="off", is_enabled=False)
        headers = self._referer | {"X-CSRFToken": self._http.cookies["csrftoken"], "If-Match": "*"}
        answer = self._http.delete(f"{API}/pools/{name}", headers=headers)
        assert answer.status_code == 204, answer.text

    def post_without_token(self, path: str) -> httpx.Response:
        """Does what another site would make the person's browser do."""
        return self._http.post(API + path, json={}, headers=self._referer)

    def ended_request(self, request_id: str) -> dict[str, Any]:
        """Waits for a request's record and returns it. `request_id`: as the client saw it."""

        def look() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = self.get("/requests", state="ended", q=request_id)[
                "requests"
            ]
            return found

        (record,) = wait_for(look, f"{request_id} is recorded")
        return dict(record)

    def migrate(self, request_id: str, destination: str | None = None) -> dict[str, Any]:
        """Begins a move of a request that runs, once its instance has reported it."""

        def ask() -> httpx.Response | None:
            answer = self.post(f"/requests/{request_id}/migrate", {"destination": destination})
            return None if answer.status_code == 404 else answer

        answer = wait_for(ask, f"{request_id} is reported")
        assert answer.status_code == 202, answer.text
        body: dict[str, Any] = answer.json()
        assert answer.headers["location"] == f"{API}/migrations/{body['migration_id']}"
        return body

    def wait_end(self, migration_id: str) -> dict[str, Any]:
        """Waits for a move's end and returns its record."""
        return self.wait_move(migration_id, lambda m: m["state"] in ("committed", "aborted"))

    def wait_move(
        self, migration_id: str, is_so: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.get(f"/migrations/{migration_id}")
            return found if is_so(found) else None

        found: dict[str, Any] = wait_for(look, f"the move {migration_id}")
        return found

    @property
    def _referer(self) -> dict[str, str]:
        return {"Referer": str(self._http.base_url)}
