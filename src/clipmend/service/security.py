"""Who may ask: the token, its cookie, the host, pages of other sites; and the headers that keep a browser in bounds."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clipmend.service.errors import ServiceError, error_response
from clipmend.service.settings import Settings

__all__ = ["COOKIE", "PAGE_POLICY", "Guard", "Headers", "address_of", "check_bind", "is_loopback", "session_value", "token_fits"]

COOKIE = "clipmend_session"
PAGE_POLICY = (
    "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_STRICT_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"

_OPEN = frozenset({"/", "/health", "/login", "/logout", "/docs", "/openapi.json"})
"""Addresses that need no token: the page itself, which asks for it, and what says nothing of the images."""


def address_of(scope: Scope) -> str:
    """The path as the application's routes know it: without that of the application that this one is mounted in."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) and path[len(root) :].startswith("/") else path


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, token: str | None) -> None:
    """Refuse to listen to other machines without a token.

    Raises:
        ValueError: that.
    """
    if not is_loopback(host) and token is None:
        raise ValueError(
            f"{host} can be reached by other machines, so a token is needed: --token-file FILE, or the environment variable "
            "CLIPMEND_TOKEN. Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )


def token_fits(given: str, token: str) -> bool:
    """Compare in a time that says nothing of where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())


def session_value(token: str) -> str:
    """What the cookie holds: proof of the token, and not the token itself; another token makes it worthless."""
    return hmac.new(token.encode(), b"clipmend session 1", hashlib.sha256).hexdigest()


class Headers:
    """Outermost: gives every answer the headers that it does not bring itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_missing_headers(message.get("headers", []))]
            await send(message)

        await self._app(scope, receive, guarded if scope["type"] == "http" else send)


class Guard:
    """Checks who asks, before anything of the request is looked at."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._session = None if settings.token is None else session_value(settings.token)
        # Names of this machine alone, and no token: then nobody else has been thought of.
        self._alone = settings.token is None and all(is_loopback(name) for name in settings.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._check_client(scope.get("client"))
            self._check_host(headers)
            self._check_site(scope["method"], headers)
            address = address_of(scope)
            if not (address in _OPEN or address.startswith("/page/")):
                self._check_token(headers)
        except ServiceError as error:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_client(self, client: tuple[str, int] | None) -> None:
        """Without a token, another machine can spell ``Host: localhost`` as well: where a server lets it in, it is refused here."""
        if self._alone and client is not None and _is_elsewhere(client[0]):
            message = "this service is for the machine it runs on; for other machines it needs a token"
            raise ServiceError(403, "foreign_machine", message)

    def _check_host(self, headers: dict[str, str]) -> None:
        """Without a token, only by this machine's own names: else a name that an attacker points here would let a page in."""
        allowed: Collection[str] = self._settings.hosts
        if self._settings.token is not None or "*" in allowed:
            return
        host = _without_port(headers.get("host", ""))
        if host not in allowed:
            raise ServiceError(
                400,
                "bad_host",
                f"this service answers to {', '.join(allowed)}, not to {host[:100]!r}; ask by one of these, or set a token",
            )

    def _check_site(self, method: str, headers: dict[str, str]) -> None:
        """A page of another site, or of another port of this machine, may make a browser ask; it gets nothing done here.

        Browsers say where a request comes from, in a header that pages cannot set, wherever the connection is trusted. Elsewhere
        the origin is compared, without its port, which proxies leave out of ``Host``. What is only read may be linked to.
        """
        reads = method in ("GET", "HEAD", "OPTIONS")
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None:
            followed = reads and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") in (None, "document")
            foreign = site not in ("same-origin", "none") and not followed
        else:
            foreign = (
                not reads
                and origin is not None
                and _without_port(origin.partition("://")[2]) != _without_port(headers.get("host", ""))
            )
        if foreign:
            raise ServiceError(403, "foreign_site", "a page of another site may not ask this service")

    def _check_token(self, headers: dict[str, str]) -> None:
        token = self._settings.token
        if token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token_fits(given.strip(), token):
            return
        assert self._session is not None
        if hmac.compare_digest(_cookie(headers.get("cookie", "")).encode(), self._session.encode()):
            return
        raise ServiceError(
            401,
            "unauthorized",
            "the token is missing or wrong: send it as 'Authorization: Bearer TOKEN'",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _cookie(header: str) -> str:
    try:
        cookie = SimpleCookie(header)
    except CookieError:
        return ""
    return cookie[COOKIE].value if COOKIE in cookie else ""


def _is_elsewhere(client: str) -> bool:
    """Whether that is the address of another machine; what is no address (a socket of this machine, a test) is not."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return not (mapped or address).is_loopback


def _without_port(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _missing_headers(there: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    given = {name.lower() for name, _ in there}
    wanted = (
        (b"content-security-policy", _STRICT_POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"x-frame-options", b"DENY"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
    )
    return [(name, value) for name, value in wanted if name not in given]
