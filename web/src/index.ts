/**
 * skyinfer: System One decision models in JavaScript. A state and typed questions in, calibrated probabilities out.
 *
 * The engine is the C core of the Python package of this name, as WebAssembly; names, answers and errors are the same.
 */

export { CompiledQuestions, type DecideOptions } from "./compiled.js";
export { FormatError, RequestError, SkyinferError, type PathPart } from "./errors.js";
export type { Architecture, ModelConfig } from "./files/config.js";
export type { ModelInput, Progress } from "./files/source.js";
export * as flappy from "./games/flappy.js";
export { JsonError, JsonNumber, NotJsonError, parseJson, writeJson, type JsonObject, type JsonValue } from "./json.js";
export { Model, load, type LoadOptions } from "./model.js";
export { Core, relaxedSupported, type CoreOptions, type Isa, type ModuleInput } from "./runtime/core.js";
export type {
  Answer, ChoiceAnswer, ChoiceQuestion, Json, Label, MinConfidence, NoulAnswer, NoulQuestion, Question, Questions, QuestionType, Response,
  ScoreAnswer, ScoreQuestion,
} from "./schema.js";
export type { Sequence } from "./text/sequence.js";
