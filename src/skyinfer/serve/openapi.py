"""The OpenAPI description of a server, with its limits. The tests generate faulty bodies from it."""

from __future__ import annotations

from typing import Any

from .. import __version__
from ..runtime.thresholds import THRESHOLD_NAMES
from .options import Options


def description(options: Options) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a server with these options."""
    limits = options.limits
    error = {"$ref": "#/components/schemas/Error"}
    responses = {
        str(status): {"description": text, "content": {"application/json": {"schema": error}}}
        for status, text in {
            401: "No key, or a wrong one, where the server asks for one",
            404: "No model of this name",
            408: "The body took too long to arrive",
            413: "Too many bytes or tokens",
            415: "A coding or a kind of content that is not known",
            422: "The body is faulty; the error says where",
            503: "Too many requests wait; Retry-After says when to come again",
        }.items()
    }
    if options.error_style == "llama":
        responses["400"] = responses.pop("422")

    def post(summary: str, request: str, response: str) -> dict[str, Any]:
        return {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": _json(request)},
                "responses": {"200": {"description": "Answers", "content": _json(response)}, **responses},
            }
        }

    def get(summary: str, kind: str = "application/json") -> dict[str, Any]:
        return {"get": {"summary": summary, "responses": {"200": {"description": summary, "content": {kind: {}}}}}}

    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "skyinfer", "version": __version__, "description": "System One decisions on a CPU"},
        "paths": {
            "/v1/systemone": post("Answer typed questions about a state", "Request", "Response"),
            "/v1/systemone/batch": post("Answer the same questions about each state", "BatchRequest", "BatchResponse"),
            "/v1/models": get("The models that are served"),
            "/health": get("Whether the server is up"),
            "/metrics": get("Prometheus metrics", "text/plain"),
        },
        "components": {"schemas": _schemas(limits.questions, limits.options, limits.levels, limits.states)},
    }
    if options.api_key is not None:
        described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"key": []}]
    return described


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(questions: int, options: int, levels: int, states: int) -> dict[str, Any]:
    text = {"type": ["string", "object", "array", "null"]}
    label = {"type": ["string", "number", "boolean"]}
    string, integer = {"type": "string"}, {"type": "integer"}
    number = {"type": "number"}
    probability, tokens = {"type": "number", "minimum": 0, "maximum": 1}, {"type": ["integer", "null"], "minimum": 1}
    probabilities = {"type": "object", "additionalProperties": number}
    asked = {"type": "object", "minProperties": 1, "maxProperties": questions, "additionalProperties": _ref("Question")}
    state = {"type": ["string", "object", "array", "number", "boolean"]}
    model = {"type": ["string", "null"], "description": "A name that GET /v1/models lists, or jev-latest"}
    strings = {"type": "array", "items": string}
    usage = _object(["input_tokens", "output_tokens"], input_tokens=integer, output_tokens=integer)
    answers = {"type": "object", "additionalProperties": _ref("Answer")}
    fault = _object(["loc", "msg", "type"], loc={"type": "array"}, msg=string, type=string)
    return {
        "Request": _object(
            ["state", "questions"],
            state=state,
            questions=asked,
            model=model,
            x_min_confidence=_ref("MinConfidence"),
            x_long=_ref("Long"),
        ),
        "BatchRequest": _object(
            ["states", "questions"],
            states={"type": "array", "maxItems": states, "items": state},
            questions=asked,
            model=model,
            x_min_confidence=_ref("MinConfidence"),
        ),
        "MinConfidence": {
            "description": "Answers of a smaller probability get x_abstained; one number, or by type and options",
            "oneOf": [
                {"type": "null"},
                probability,
                {
                    "type": "object",
                    "minProperties": 1,
                    "properties": dict.fromkeys(THRESHOLD_NAMES, probability),
                    "additionalProperties": False,
                },
            ],
        },
        "Long": {
            "description": "The state is read whole, in overlapping windows; not with x_min_confidence",
            "oneOf": [
                {"type": ["null", "boolean"]},
                {
                    "type": "object",
                    "properties": {"window": tokens, "stride": tokens},
                    "additionalProperties": False,
                },
            ],
        },
        "Question": {"oneOf": [_ref("Choice"), _ref("Score"), _ref("Noul")]},
        "Choice": _object(
            ["type", "criteria"],
            type={"const": "choice"},
            instructions=text,
            criteria={
                "oneOf": [
                    {"type": "object", "minProperties": 1, "maxProperties": options, "additionalProperties": text},
                    {"type": "array", "minItems": 1, "maxItems": options, "items": label},
                ]
            },
        ),
        "Score": _object(
            ["type", "criteria"],
            type={"const": "score"},
            instructions=text,
            criteria={
                "type": "array", "minItems": 1, "maxItems": levels,
                "items": {"type": ["string", "object", "array"]},
            },
        ),
        "Noul": _object(
            ["type"],
            type={"const": "noul"},
            instructions=text,
            criteria={
                "type": ["object", "null"],
                "properties": {"true": text, "false": text},
                "additionalProperties": False,
            },
        ),
        "Answer": {
            "oneOf": [
                _object(
                    ["type", "choice", "probabilities", "confidence"],
                    type={"const": "choice"}, choice=string, probabilities=probabilities, confidence=number,
                ),
                _object(
                    ["type", "score", "legend", "probabilities", "confidence"],
                    type={"const": "score"}, score=number, legend={"type": "object"}, probabilities=probabilities,
                    confidence=number,
                ),
                _object(["type", "noul"], type={"const": "noul"}, noul=number),
            ]
        },
        "Response": _object(
            ["model", "answers", "usage"], model=string, answers=answers, usage=usage, x_ignored=strings
        ),
        "BatchResponse": _object(
            ["model", "results", "usage"],
            model=string,
            results={"type": "array", "items": _object(["answers", "usage"], answers=answers, usage=usage)},
            usage=usage,
            x_ignored=strings,
        ),
        "Error": {
            "oneOf": [
                _object(["detail"], detail={"type": "array", "items": fault}),
                _object(
                    ["detail"],
                    detail=_object(["error_type", "message"], error_type=string, message=string),
                ),
                _object(
                    ["error"],
                    error=_object(
                        ["code", "message", "type"],
                        code=integer, message=string, type=string,
                    ),
                ),
            ]
        },
    }  # fmt: skip
