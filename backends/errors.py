"""Every error of ours, one tree; status, type, code and retryability are data of the class.

    SlipstreamError
    ├── RequestError                 the caller can mend it
    │   ├── InvalidRequest           400, names the field
    │   │   └── ContextLengthExceeded 400, prompt and answer are longer than the model's context
    │   ├── Unauthorized             401
    │   ├── Forbidden                403, the key may not do that
    │   ├── ForeignOrigin            403, a web page, or a name that is not ours, where there are no keys
    │   ├── UnknownModel             404
    │   ├── UnknownPath              404
    │   ├── UnknownEntry             404, nothing of that id is cached
    │   ├── UnknownObject            404, the tenant has no file, batch or object of that id
    │   ├── QuotaExceeded            400, the tenant has as much stored as it may
    │   ├── LimitReached             429, so many calls or tokens are all that a limit allows
    │   ├── BudgetSpent              429, so many dollars are all that a budget has
    │   ├── CostUnknown              403, a budget or a route asks for a price, and nobody knows one
    │   ├── MethodNotAllowed         405
    │   ├── BodyTooLarge             413
    │   ├── BodyTooSlow              408, it comes with less than a client sends that means it
    │   ├── KeyHoldsTooMuch          429, the bodies of one key's requests in flight are too many bytes
    │   ├── UnsupportedEncoding      415
    │   ├── WebSocketRefused         426
    │   └── ClientGone               499, nobody is left to answer
    ├── GatewayError                 the operator can mend it
    │   ├── ConfigurationError       at start or reload
    │   ├── Draining                 503
    │   ├── TooMuchHeld              503, the bodies of all requests in flight are too many bytes
    │   ├── TooManyAnswersHeld       503, the answers that are read whole are too many bytes
    │   ├── StoreUnavailable         503, a shared store does not answer
    │   └── InternalError            500
    └── UpstreamError                no answer to pass on
        ├── ConnectFailed            502, nothing was sent
        ├── UpstreamCut              502, it went away in the middle
        ├── UpstreamGarbage          502, it answered something else than it should
        ├── UpstreamRejectedKey      502, the gateway's own key is refused
        ├── UpstreamErrorEvent       502, a 200 stream whose first event is an error
        ├── NoBackendAvailable       503, every breaker is open
        ├── Overloaded               429, it could not be answered in time
        ├── UpstreamExhausted        429, the quota is used up, nothing was sent
        └── UpstreamTimeout          504
            ├── ConnectTimeout       504, nothing was sent
            ├── PoolTimeout          503, no connection came free, nothing was sent
            ├── FirstTokenTimeout    504
            ├── StreamStalled        504, silent in the middle of a stream
            └── TotalTimeout         504

Foreign exceptions are translated once, where they enter.
"""

from __future__ import annotations

import logging
from typing import ClassVar, Literal

import msgspec

Fault = Literal["client", "gateway", "upstream"]
"""Who can do something about an error: who has called, who runs the gateway, who runs the upstream."""


class SlipstreamError(Exception):
    """Root of the tree. The message says what was wrong, its value, and what to do; it may be shown to a client."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    retryable: ClassVar[bool] = False
    """Another attempt is safe (nothing reached a model) and may help."""
    fault: ClassVar[Fault] = "gateway"
    log_level: ClassVar[int] = logging.WARNING
    stream_end: ClassVar[str] = "error"
    """How a stream that fails this way has ended; a value of `StreamEnd`."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def reason(self) -> str:
        """One word for metrics and logs: the code, or the type where there is none."""
        return self.code or self.type

    def body(self) -> bytes:
        """The error in OpenAI's shape."""
        return error_body(self.message, type=self.type, param=self.param, code=self.code)


def error_body(message: str, *, type: str, param: str | None = None, code: str | None = None) -> bytes:
    """An error object in OpenAI's shape, as JSON."""
    return msgspec.json.encode({"error": {"message": message, "type": type, "param": param, "code": code}})


class RequestError(SlipstreamError):
    """The caller can mend it."""

    status = 400
    type = "invalid_request_error"
    fault: ClassVar[Fault] = "client"
    log_level = logging.INFO


class InvalidRequest(RequestError):
    """The body or a parameter is not what the operation takes."""


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer together are longer than the context of a model that is served here."""

    code = "context_length_exceeded"


class Unauthorized(RequestError):
    """No key, or not one of ours."""

    status = 401
    code = "invalid_api_key"


class Forbidden(RequestError):
    """The key is one of ours, and may not do that."""

    status = 403
    code = "not_allowed"


class ForeignOrigin(RequestError):
    """There are no keys, and the request looks like that of a web page that is not trusted."""

    status = 403
    code = "origin_not_allowed"


class UnknownModel(RequestError):
    """No route answers for that model."""

    status = 404
    code = "model_not_found"


class UnknownPath(RequestError):
    """No such endpoint here."""

    status = 404
    code = "unknown_url"


class UnknownEntry(RequestError):
    """The cache has nothing of that id, or not any more."""

    status = 404
    code = "entry_not_found"


class UnknownObject(RequestError):
    """The tenant has no file, batch, call or other object of that id (any more); or there is no key of that name."""

    status = 404
    code = "not_found"


class QuotaExceeded(RequestError):
    """The tenant has as many files, bytes or batches as it may."""

    code = "quota_exceeded"


class LimitReached(RequestError):
    """More calls or tokens in a time, or calls at once, than a limit allows; nothing was sent."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class BudgetSpent(RequestError):
    """What a budget has for this time is spent; nothing was sent. OpenAI's words, which clients know."""

    status = 429
    type = code = "insufficient_quota"


class CostUnknown(RequestError):
    """A call is metered nowhere, or has no price, and a budget is to bear it, or its route wants one."""

    status = 403
    code = "cost_unknown"


class MethodNotAllowed(RequestError):
    """The endpoint exists, the method does not."""

    status = 405
    code = "method_not_allowed"


class BodyTooLarge(RequestError):
    """The body is over the configured limit."""

    status = 413
    code = "request_too_large"


class BodyTooSlow(RequestError):
    """The body comes more slowly than a client that means it sends one."""

    status = 408
    code = "request_timeout"


class KeyHoldsTooMuch(RequestError):
    """The requests of this key, or its tenant, that are in flight have as many bytes as those of one may."""

    status = 429
    type = "rate_limit_error"
    code = "request_bytes_exceeded"


class UnsupportedEncoding(RequestError):
    """The body is compressed or not JSON."""

    status = 415
    code = "unsupported_media_type"


class WebSocketRefused(RequestError):
    """The client wants to go on in WebSocket, which is not spoken here."""

    status = 426
    code = "websocket_not_supported"


class ClientGone(RequestError):
    """The client left before the answer."""

    status = 499
    code = "client_gone"
    stream_end = "client_gone"


class GatewayError(SlipstreamError):
    """The operator can mend it."""

    log_level = logging.ERROR


class ConfigurationError(GatewayError):
    """A policy file or setting cannot be used; the message names file, path, value and what is allowed."""

    code = "configuration_error"


class Draining(GatewayError):
    """The gateway is shutting down."""

    status = 503
    code = "draining"
    log_level = logging.INFO


class TooMuchHeld(GatewayError):
    """The requests in flight have as many bytes as the gateway may hold."""

    status = 503
    code = "request_bytes_exhausted"


class TooManyAnswersHeld(GatewayError):
    """The answers that are read whole have as many bytes as the gateway may hold."""

    status = 503
    code = "answer_bytes_exhausted"


class StoreUnavailable(GatewayError):
    """Where limits, the semantic cache, or what /v1/batches works on, are kept does not answer what is asked of it."""

    status = 503
    code = "store_unavailable"


class InternalError(GatewayError):
    """A bug of ours; the cause is in the log, never in the answer."""

    code = "internal_error"


class UpstreamError(SlipstreamError):
    """There is no answer of an upstream to pass on."""

    status = 502
    type = "upstream_error"
    code = "upstream_error"
    fault: ClassVar[Fault] = "upstream"


class ConnectFailed(UpstreamError):
    """No connection; nothing was sent."""

    code = "upstream_unreachable"
    retryable = True


class UpstreamCut(UpstreamError):
    """The upstream went away before its answer was whole."""

    code = "upstream_cut"
    stream_end = "upstream_cut"


class UpstreamGarbage(UpstreamError):
    """The upstream's answer is not what this operation answers with."""

    code = "upstream_invalid_response"


class UpstreamRejectedKey(UpstreamError):
    """The upstream refused the gateway's own credentials."""

    code = "upstream_authentication_failed"
    fault = "gateway"
    log_level = logging.ERROR


class UpstreamErrorEvent(UpstreamError):
    """A stream that began with an error event."""

    code = "upstream_error_event"


class NoBackendAvailable(UpstreamError):
    """Every backend of the route is out of rotation."""

    status = 503
    code = "no_backend_available"


class Overloaded(UpstreamError):
    """More is asked than the backends of the route can answer in time; nothing was sent."""

    status = 429
    type = "rate_limit_error"
    code = "slo_shed"
    fault = "gateway"
    log_level = logging.INFO

    first_token_s: float | None = None
    """How long after its arrival the call's first token would have come, as far as known."""


class UpstreamExhausted(UpstreamError):
    """What the upstream lets this gateway ask is used up; nothing was sent."""

    status = 429
    type = "rate_limit_error"
    code = "upstream_quota_exhausted"
    log_level = logging.INFO


class UpstreamTimeout(UpstreamError):
    """An upstream took longer than the route allows."""

    status = 504
    code = "upstream_timeout"


class ConnectTimeout(UpstreamTimeout):
    """No connection within `timeouts.connect`; nothing was sent."""

    code = "connect_timeout"
    retryable = True


class PoolTimeout(UpstreamTimeout):
    """No connection of the pool came free in time; nothing was sent."""

    status = 503
    code = "pool_timeout"
    retryable = True


class FirstTokenTimeout(UpstreamTimeout):
    """Nothing of a stream within `timeouts.first_token`."""

    code = "first_token_timeout"


class StreamStalled(UpstreamTimeout):
    """A stream went silent for `timeouts.stream_idle`."""

    code = "stream_stalled"
    stream_end = "stall"


class TotalTimeout(UpstreamTimeout):
    """The call took longer than `timeouts.total`."""

    code = "total_timeout"
