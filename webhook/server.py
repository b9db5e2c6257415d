"""What is answered to each request: reviews, health, readiness, metrics, or a clear refusal."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from aiohttp import HttpVersion10, HttpVersion11
from aiohttp.web import BaseRequest, StreamResponse

from sidemount.host.logs import log
from sidemount.model.errors import NotReady, VolumeError
from webhook.admit import mutate
from webhook.connection import Connection
from webhook.deadline import answer_within_s
from webhook.decision_log import DecisionLog
from webhook.drain import Drain
from webhook.facts_source import FactsSource
from webhook.injection_settings import InjectionSettings
from webhook.limits import BodyBudget, Limits
from webhook.metrics import Metrics, Path
from webhook.outcome import Answer, Doubt
from webhook.plain_request import PlainHead
from webhook.request_body import check_headers, read_body
from webhook.response import (
    HttpRefusal,
    WireResponse,
    json_answer,
    refusal_answer,
    text_answer,
)
from webhook.review import BadReview
from webhook.validate import validate

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOOKS_MAX = 64  # for one admission: a pod may have some ten volumes, each with a claim
_RETRY = (("Retry-After", "1"),)
_QUESTIONS = {"/mutate": Path.MUTATE, "/validate": Path.VALIDATE}
_VERSIONS = (HttpVersion11, HttpVersion10)
_log = log("webhook.server")

_JUDGES = {Path.MUTATE.value: mutate, Path.VALIDATE.value: validate}


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Why this process is not ready; empty when it is. `notes` are told without making it unready."""

    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class AdmissionServer:
    """The handler that aiohttp's server calls for every request. Never raises but for a connection that is gone."""

    def __init__(
        self,
        *,
        facts: FactsSource,
        settings: InjectionSettings,
        readiness: Callable[[], Readiness],
        metrics: Metrics,
        log: DecisionLog,
        drain: Drain,
        limits: Limits,
    ) -> None:
        self._source = facts
        self._facts = facts.facts
        self._settings = settings
        self._readiness = readiness
        self._metrics = metrics
        self._log = log
        self._drain = drain
        self._limits = limits
        self._budget = BodyBudget(limits.buffered_bytes)
        self._loop = asyncio.get_running_loop()
        # One thread: the interpreter lock would let a second one only take the event loop's share.
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="large-review")

    def close(self) -> None:
        """Give up what is still running beside the event loop."""
        self._beside.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, request: BaseRequest) -> StreamResponse:
        """Return the response to one request that came through aiohttp's parser."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        began = connection.begin()
        try:
            response = await self._respond(request, began)
        except ConnectionError:
            raise
        except Exception as error:
            refusal = self._refusal_of(error)
            response = refusal_answer(
                refusal, is_last=self._is_last(request), without_body=request.method == "HEAD"
            )
        connection.answered()
        return response

    def answer_plain(self, head: PlainHead, body: bytes) -> WireResponse | None:
        """Return the response to a plain request, whole in hand; None if that takes a look at the source. Never raises."""
        try:
            answer, elapsed_s = self._judge(head.question, body)
            if answer.doubts and self._source.unsettled(answer.doubts):
                return None
            self._decided(head.question, answer, elapsed_s, len(body))
            return json_answer(answer.body, status=answer.http_status, is_last=self._drain.is_draining)
        except Exception as error:
            return refusal_answer(self._refusal_of(error), is_last=self._drain.is_draining)

    def _refusal_of(self, error: Exception) -> HttpRefusal:
        """Return what a caller is told of an error, and count it. What nobody foresaw is logged here, once."""
        match error:
            case HttpRefusal():
                refusal = error
            case BadReview():
                refusal = HttpRefusal(400, str(error))
            case NotReady():
                refusal = HttpRefusal(503, str(error), headers=_RETRY)
            case VolumeError():
                refusal = HttpRefusal(500, str(error))
            case _:
                _log.error("request_failed", exc_info=True)
                refusal = HttpRefusal(
                    500, "the request could not be handled; see the log of the webhook", is_last=True
                )
        self._metrics.refused(refusal.status)
        return refusal

    async def _respond(self, request: BaseRequest, began: float) -> WireResponse:
        if request.version not in _VERSIONS:
            raise HttpRefusal(400, "not a valid HTTP/1.1 request: another version of HTTP", is_last=True)
        target = request.raw_path
        if not target.startswith("/"):  # absolute form: what a proxy is asked
            target = request.rel_url.raw_path_qs
        path, _, query = target.partition("?")
        question = _QUESTIONS.get(path)
        if question is None:
            return self._page(request, path)
        if request.method != "POST":
            raise HttpRefusal(405, f"{path} answers POST only", headers=(("Allow", "POST"),))
        return await self._review(request, question, began, query)

    async def _review(self, request: BaseRequest, question: Path, began: float, query: str) -> WireResponse:
        check_headers(request)
        deadline = began + answer_within_s(query, self._limits.request_s)
        body, charged = await read_body(request, self._limits, self._budget, deadline)
        beside: list[asyncio.Future[Answer]] = []
        try:
            answer = await self._judge_settled(question, body, deadline, beside)
        finally:
            # The other thread holds the body for as long as it is at it, whoever waits for it or not.
            if beside and not beside[-1].done():
                beside[-1].add_done_callback(lambda _: self._budget.give_back(charged))
            else:
                self._budget.give_back(charged)
        return json_answer(answer.body, status=answer.http_status, is_last=self._is_last(request))

    def _judge(self, question: Path, body: bytes) -> tuple[Answer, float]:
        """Return an answer, and the seconds that it took."""
        started = perf_counter()
        answer = _JUDGES[question._value_](body, facts=self._facts(), settings=self._settings)
        return answer, perf_counter() - started

    async def _judge_settled(
        self, question: Path, body: bytes, deadline: float, beside: list[asyncio.Future[Answer]]
    ) -> Answer:
        """Judge; while the outcome rests on facts that may only be late, look at these and judge again.

        One look leads to the next: a claim names a volume. What was looked at once is not in doubt any more.
        """
        looked: set[Doubt] = set()
        total_s = 0.0
        while True:
            if len(body) < self._limits.thread_body_bytes:
                answer, elapsed_s = self._judge(question, body)
            else:
                answer, elapsed_s = await self._judge_beside(question, body, deadline, beside)
            total_s += elapsed_s
            doubts = self._unsettled(answer.doubts, looked)
            if not doubts or len(looked) >= _LOOKS_MAX:
                break
            looked.update(doubts)
            await self._source.settle(doubts, deadline - self._loop.time())
        self._decided(question, answer, total_s, len(body))
        return answer

    def _unsettled(self, doubts: Sequence[Doubt], looked: set[Doubt]) -> list[Doubt]:
        if not doubts:
            return []
        return [doubt for doubt in self._source.unsettled(doubts) if doubt not in looked][:_LOOKS_MAX]

    def _decided(self, question: Path, answer: Answer, elapsed_s: float, size_bytes: int) -> None:
        self._metrics.decided(question, answer.outcome, elapsed_s, size_bytes)
        self._log.decided(question, answer, elapsed_s, size_bytes)

    async def _judge_beside(
        self, question: Path, body: bytes, deadline: float, beside: list[asyncio.Future[Answer]]
    ) -> tuple[Answer, float]:
        """Judge a large review in the other thread: its milliseconds are nobody else's. What it is at joins `beside`."""
        started = perf_counter()
        judge = partial(_JUDGES[question.value], body, facts=self._facts(), settings=self._settings)
        judging = self._loop.run_in_executor(self._beside, judge)
        beside.append(judging)
        try:
            async with asyncio.timeout_at(deadline):
                answer = await asyncio.shield(judging)
        except TimeoutError as error:
            judging.add_done_callback(_forget)
            raise HttpRefusal(504, "no answer within the time that the caller gives") from error
        return answer, perf_counter() - started

    def _page(self, request: BaseRequest, path: str) -> WireResponse:
        page = {"/healthz": self._health, "/readyz": self._ready, "/metrics": self._show_metrics}.get(path)
        if page is None:
            known = ", ".join((*_QUESTIONS, "/healthz", "/readyz", "/metrics"))
            raise HttpRefusal(404, f"there is nothing at this path; there is {known}")
        if request.method not in ("GET", "HEAD"):
            raise HttpRefusal(405, f"{path} answers GET and HEAD only", headers=(("Allow", "GET, HEAD"),))
        return page(request)

    def _health(self, request: BaseRequest) -> WireResponse:
        return self._text(request, 200, "ok\n")

    def _ready(self, request: BaseRequest) -> WireResponse:
        readiness = self._readiness()
        missing = ("draining", *readiness.missing) if self._drain.is_draining else readiness.missing
        lines = [*(f"not ready: {line}" for line in missing), *(f"note: {line}" for line in readiness.notes)]
        return self._text(request, 503 if missing else 200, "\n".join(lines or ["ready"]) + "\n")

    def _show_metrics(self, request: BaseRequest) -> WireResponse:
        return self._text(request, 200, self._metrics.render().decode(), METRICS_TYPE)

    def _text(
        self, request: BaseRequest, status: int, text: str, content_type: str = "text/plain; charset=utf-8"
    ) -> WireResponse:
        return text_answer(
            status,
            text,
            is_last=self._is_last(request),
            content_type=content_type,
            without_body=request.method == "HEAD",
        )

    def _is_last(self, request: BaseRequest) -> bool:
        return self._drain.is_draining or not request.keep_alive


def _forget(judging: "asyncio.Future[Answer]") -> None:
    """Take the result of a judgement that nobody waits for any more."""
    if not judging.cancelled():
        judging.exception()
