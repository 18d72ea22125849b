/**
 * The prompt template of a model file: one of those that converters write, recognised by its text; as in Python's template.py,
 * which runs any harmless jinja. No template language runs here, and no user text is ever part of a template.
 */

import { FormatError } from "../errors.js";
import type { Option, QuestionType } from "../schema.js";
import type { Metadata } from "./tokenizer.js";

export const TEMPLATE_KEY = "tokenizer.chat_template.systemone";

/** Texts of the special tokens. */
export interface TemplateTokens {
  clsText: string;
  sepText: string;
  maskText: string;
}

const value = (name: string): string => `{{ ${name} if ${name} is string else ${name} | tojson }}`;

function layout({ clsText, sepText, maskText }: TemplateTokens, option: string): string {
  return (
    `${clsText}{{ type }} question: ${value("instructions")}${sepText}` +
    `{% for o in options %}${maskText} ${option}{% endfor %}${sepText}${value("state")}${sepText}`
  );
}

/** The template of a Laya checkpoint. */
export function layaTemplate(tokens: TemplateTokens): string {
  const described = value("o.description");
  return layout(
    tokens,
    `{% if type == 'choice' %}{{ o.key }}{% if o.description %}: ${described}{% endif %}` +
      `{% elif type == 'score' %}level {{ o.key }}: ${described}` +
      `{% else %}{{ o.key }}: {% if o.description %}${described}{% elif o.key == 'true' %}yes, the statement holds` +
      `{% else %}no, the statement does not hold{% endif %}{% endif %}`,
  );
}

/** The template of a Julia-1 checkpoint: an option is its description, or else its key. */
export function juliaTemplate(tokens: TemplateTokens): string {
  return layout(tokens, `{% if o.description %}${value("o.description")}{% else %}{{ o.key }}{% endif %}`);
}

/** Text of the parts of a sequence. Mask tokens in user text become spaces. */
export class PromptTemplate {
  private constructor(
    private readonly maskText: string,
    private readonly isJulia: boolean,
  ) {}

  /** The template of a model file; Laya's own where the file has none. @throws FormatError it is another one. */
  static fromMetadata(metadata: Metadata, tokens: TemplateTokens): PromptTemplate {
    const source = metadata.get(TEMPLATE_KEY);
    if (source === undefined || source === layaTemplate(tokens)) return new PromptTemplate(tokens.maskText, false);
    if (source === juliaTemplate(tokens)) return new PromptTemplate(tokens.maskText, true);
    if (typeof source !== "string") throw new FormatError(`${TEMPLATE_KEY} must be a string`);
    throw new FormatError(
      `${TEMPLATE_KEY} is not one of the templates that converters write (Laya's and Julia-1's); in a browser no other runs`,
    );
  }

  question(type: QuestionType, instructions: string): string {
    return `${type} question: ${this.unmasked(instructions)}`;
  }

  /** Text of option `index`, with the space that comes after its marker. */
  option(type: QuestionType, index: number, { name, description }: Option): string {
    let text: string;
    if (this.isJulia) text = description || name;
    else if (type === "choice") text = description ? `${name}: ${description}` : name;
    else if (type === "score") text = `level ${name}: ${description ?? ""}`;
    else text = `${name}: ${description || (index === 1 ? "yes, the statement holds" : "no, the statement does not hold")}`;
    return ` ${this.unmasked(text)}`;
  }

  state(text: string): string {
    return this.unmasked(text);
  }

  private unmasked(text: string): string {
    return text.replaceAll(this.maskText, " ");
  }
}
