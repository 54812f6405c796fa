"""An error that a door of this API answers by itself; errors.py gives it its shape."""

from rest_framework.exceptions import APIException


class Problem(APIException):
    """`auth_header`: what a 401 asks for (WWW-Authenticate)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status
        self.message, self.code, self.param = message, code, param
        self.retry_after_s = retry_after_s
        self.auth_header = ""
