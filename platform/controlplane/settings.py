"""Django's settings, read once from the environment; the pool's: `engine_pool/config.py`."""

import os
from datetime import timedelta
from pathlib import Path

import environ
import plotly
from django.core.exceptions import ImproperlyConfigured

from controlplane import admin_settings
from engine_pool.config import PoolConfig

BASE_DIR = Path(__file__).resolve().parents[2]
env = environ.Env()

POOL = PoolConfig.from_env(os.environ)
VAR_DIR = (BASE_DIR / POOL.var_dir).resolve()
VAR_DIR.mkdir(parents=True, exist_ok=True)

DEBUG = env.bool("FERRY_DEBUG", default=False)
ALLOWED_HOSTS = env.list("FERRY_ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])


def _secret_key() -> str:
    """Returns the key from the environment, or makes one on first start and keeps it (mode 600)."""
    given = env.str("FERRY_SECRET_KEY", default="")
    if given:
        return given
    path = VAR_DIR / "secret-key"
    if not path.exists():
        from django.core.management.utils import get_random_secret_key

        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(get_random_secret_key())
    return path.read_text().strip()


SECRET_KEY = _secret_key()

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "axes",
    "controlplane.api",
    "controlplane.audit",
    "controlplane.tenants",
    "controlplane.gateway",
    "controlplane.fleet",
    "controlplane.scaling",
    "controlplane.usage",
    "controlplane.whatif",
    "web",
]

# "Migration" means moving a running request here, so Django's folders have another name.
MIGRATION_MODULES = {
    "management_api": "controlplane.api.schema_migrations",
    "audit": "controlplane.audit.schema_migrations",
    "usage": "controlplane.usage.schema_migrations",
    "tenants": "controlplane.tenants.schema_migrations",
    "gateway": "controlplane.gateway.schema_migrations",
    "scaling": "controlplane.scaling.schema_migrations",
    "fleet": "controlplane.fleet.schema_migrations",
    "whatif": "controlplane.whatif.schema_migrations",
}

# For the pages, the admin and /api/v1 alone; /v1 has none of it (gateway/exchange.py).
MIDDLEWARE = [
    "controlplane.middleware.RequestId",
    "django.middleware.security.SecurityMiddleware",
    "controlplane.middleware.ContentSecurityPolicy",
    "servestatic.middleware.ServeStaticMiddleware",
    "controlplane.database_away.WithoutDatabase",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "controlplane.fleet.middleware.ChosenPool",
    # Last: it makes the answer to a login that is not even tried.
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "web.context_processors.theme",
                "web.context_processors.navigation",
            ],
        },
    },
]

DATABASES = {
    "default": env.db_url("DATABASE_URL", default=f"sqlite:///{VAR_DIR / 'ferry.sqlite3'}"),
}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = {
        # WAL lets pages read while a request's row is written; the timeout is in seconds.
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        "transaction_mode": "IMMEDIATE",
        "timeout": 10,
    }
else:
    # Seconds, but the last: milliseconds. A server whose machine is gone says nothing, and Linux
    # itself would wait for two hours.
    DATABASES["default"].setdefault("OPTIONS", {})
    DATABASES["default"]["OPTIONS"] = {
        "connect_timeout": 3,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    } | DATABASES["default"]["OPTIONS"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
FORMAT_MODULE_PATH = ["controlplane.formats"]

LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"

# The API's front end.
TOOL_PARSER = env.str("FERRY_TOOL_PARSER", default="hermes")
"""vLLM's parser of tool calls; empty: `tool_choice` auto is refused."""
REASONING_PARSER = env.str("FERRY_REASONING_PARSER", default="")
"""vLLM's parser of reasoning; empty: the model does not reason."""

STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "controlplane.storage.StaticFiles"},
}
# Files under their plain names too: a tool's own scripts, and the time before `collectstatic`.
SERVESTATIC_USE_FINDERS = True
SERVESTATIC_USE_BROTLI = False
SERVESTATIC_USE_ZSTD = False
"""gzip alone: brotli takes half a minute for Plotly, on every first start, for 15 % fewer bytes."""

STATIC_URL = "/static/"
STATIC_ROOT = VAR_DIR / "static"
STATICFILES_DIRS = [
    BASE_DIR / "static",
    # Plotly comes with its Python package, so the pages need neither a CDN nor a Node build.
    ("vendor/plotly", Path(plotly.__file__).parent / "package_data"),
]

REST_FRAMEWORK = {
    # The first one says what a 401 asks for.
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.api.authentication.KeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["controlplane.api.access.IsPlatform"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "controlplane.api.schema.ApiSchema",
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "controlplane.api.errors.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Ferry",
    "DESCRIPTION": "Management of tenants, keys, limits, SLOs, usage, pools and the requests that"
    " run on them. Log in here for a session (writes need its CSRF token), or send"
    " `Authorization: Bearer sk-...` of a key with the scope `read` or `manage`: it reaches what"
    " belongs to its tenant. What does not exist and what is not the caller's are both a 404."
    " docs/management-api.md shows the usual tasks.",
    "VERSION": "1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["controlplane.api.access.IsKnown"],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SORT_OPERATION_PARAMETERS": False,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "PriorityClass": "controlplane.tenants.models.CLASS_CHOICES",
        "TenantState": "controlplane.tenants.models.TenantState",
        "RequestState": "controlplane.gateway.request_shapes.STATES",
        "RunState": "controlplane.whatif.models.RunState",
        "Role": "controlplane.tenants.serializers.ROLES",
        "Scope": "controlplane.tenants.serializers.SCOPES",
    },
}

UNFOLD = admin_settings.UNFOLD

# A new key is shown in a message, once: in the browser's cookie, never in the session's table.
MESSAGE_STORAGE = "django.contrib.messages.storage.cookie.CookieStorage"
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_HTTPONLY = True
SESSION_ENGINE = "controlplane.sessions"
SESSION_COOKIE_AGE = 7 * 24 * 3600
"""Seconds after which a person logs in again."""
SECURE_REFERRER_POLICY = SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
# Behind a proxy that ends TLS: cookies go over TLS alone, and browsers never try without it.
HTTPS = env.bool("FERRY_HTTPS", default=False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if HTTPS else 0
CSRF_TRUSTED_ORIGINS = env.list("FERRY_TRUSTED_ORIGINS", default=[])
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
"""Bytes of a body, as in body_limit.py, which sees to it before Django does."""

AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}", "OPTIONS": options}
    for name, options in {
        "UserAttributeSimilarityValidator": {},
        "MinimumLengthValidator": {"min_length": 12},
        "CommonPasswordValidator": {},
        "NumericPasswordValidator": {},
    }.items()
]
# A person who fails so often from one address waits; others, and the person elsewhere, do not.
AXES_FAILURE_LIMIT = env.int("FERRY_LOGIN_ATTEMPTS", default=5)
AXES_COOLOFF_TIME = timedelta(minutes=env.int("FERRY_LOGIN_PAUSE_MINUTES", default=15))
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_LOCKOUT_CALLABLE = "controlplane.lockout.lockout"
AXES_RESET_ON_SUCCESS = True
# What is tried during the wait does not prolong it.
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
# The web server has put the address right already, by proxies that are trusted (ops/parts.py).
AXES_CLIENT_IP_CALLABLE = "controlplane.middleware.address_of"
AXES_SENSITIVE_PARAMETERS = ["csrfmiddlewaretoken"]
AXES_VERBOSE = False
AXES_ENABLE_ADMIN = False
"""Ours are in controlplane/tenants/admin_people.py."""

# No CHANNEL_LAYERS: each web process has the whole live view itself, and a socket must open also
# when the store is away.
CELERY_BROKER_URL = POOL.redis_url
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": "ferry:celery:"}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_TIME_LIMIT = 60
"""Seconds; every task here but a simulation, which has its own, is done within one."""
CELERY_WORKER_HIJACK_ROOT_LOGGER = False

WEB_GRACE_S = env.float("FERRY_WEB_GRACE_S", default=20.0)
"""How long a web process that was told to end goes on with its answers (leaving.py). Most have
ended by then, and with what follows it stays below the 30 s that Kubernetes waits."""
if not 0 <= WEB_GRACE_S <= 3600:
    raise ImproperlyConfigured(f"FERRY_WEB_GRACE_S={WEB_GRACE_S}: expected seconds from 0 to 3600")
RECORDS_KEPT_DAYS = env.int("FERRY_RECORDS_KEPT_DAYS", default=30)
"""Rows of requests and fleet events that are older are deleted."""
SCALING_CHECK_S = env.float("FERRY_SCALING_CHECK_S", default=5.0)
"""Seconds between two checks of scaling: an engine takes longer to start, a spike fills one within
some ten, and a check costs a pool a dozen short queries."""
if not 1 <= SCALING_CHECK_S <= 300:
    raise ImproperlyConfigured("FERRY_SCALING_CHECK_S: expected a number from 1 to 300")
USAGE_KEPT_DAYS = env.int("FERRY_USAGE_KEPT_DAYS", default=400)
"""Hours' sums of usage and SLOs that are older are deleted; more than a year, to compare with."""
TENANT_METRICS = env.bool("FERRY_TENANT_METRICS", default=False)
"""Prometheus gets series by tenant, of at most 200 tenants a process (gateway/metrics.py)."""

WHATIF_DIR = env.path("FERRY_WHATIF_DIR", default=str(VAR_DIR / "whatif"))
"""Where traces (CSV) and measured costs (JSON) lie that what-if runs may name."""

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"secrets": {"()": "controlplane.log_filter.HideSecrets"}},
    "formatters": {"plain": {"format": "%(levelname)s %(name)s: %(message)s"}},
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": "plain",
            "filters": ["secrets"],
        }
    },
    "root": {"handlers": ["stderr"], "level": env.str("FERRY_LOG_LEVEL", default="INFO")},
    "loggers": {
        # They say at INFO what nobody asked for.
        "httpx": {"level": "WARNING"},
        "axes": {"level": "WARNING"},
        "vllm": {"level": "ERROR"},
        "torch": {"level": "ERROR"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
        "uvicorn.error": {"level": "WARNING"},
    },
}
