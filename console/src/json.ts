// JSON as text. Numbers keep their spelling: a number of JavaScript has 53 bits, and one of JSON has no limit.

/** A JSON text that becomes a part of another one as it is. */
export class RawJson {
  constructor(readonly text: string) {}
}

/** Returns the tokens of a valid JSON text, without white space. */
function tokens(text: string): string[] {
  const found: string[] = [];
  // A string is read by hand: an expression of a long one exceeds the stack.
  const others = /\s+|[{}[\],:]|[^\s{}[\],:"]+/y;
  for (let at = 0; at < text.length; ) {
    let end = at + 1;
    if (text[at] === '"') {
      while (end < text.length && text[end] !== '"') end += text[end] === '\\' ? 2 : 1;
      end++;
    } else {
      others.lastIndex = at;
      end = at + (others.exec(text)?.[0].length ?? 1);
    }
    const token = text.slice(at, end);
    if (token.trim()) found.push(token);
    at = end;
  }
  return found;
}

/** Returns a value as JSON, with each `RawJson` as it is. Members without a value are left out. */
export function jsonOf(value: unknown): string {
  if (value instanceof RawJson) return value.text;
  if (Array.isArray(value)) return `[${value.map(jsonOf).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null';
  const members = Object.entries(value).filter(([, inner]) => inner !== undefined);
  return `{${members.map(([name, inner]) => `${JSON.stringify(name)}:${jsonOf(inner)}`).join(',')}}`;
}

/** Returns a valid JSON text on one line. */
export function compact(text: string): string {
  return tokens(text).join('');
}

/** Returns a valid JSON text with one member on each line. */
export function indented(text: string): string {
  let depth = 0;
  let out = '';
  const line = () => `\n${'  '.repeat(depth)}`;
  tokens(text).forEach((token, at, all) => {
    const isEmpty = (token === '{' && all[at + 1] === '}') || (token === '[' && all[at + 1] === ']');
    const closesEmpty = (token === '}' && all[at - 1] === '{') || (token === ']' && all[at - 1] === '[');
    if (token === '}' || token === ']') {
      if (!closesEmpty) {
        depth--;
        out += line();
      }
      out += token;
    } else if (token === '{' || token === '[') {
      out += token;
      if (!isEmpty) {
        depth++;
        out += line();
      }
    } else if (token === ',') out += `,${line()}`;
    else out += token === ':' ? ': ' : token;
  });
  return out;
}

/** Returns the position after the value that begins at `at`. */
function afterValue(all: readonly string[], at: number): number {
  let depth = 0;
  do {
    const token = all[at++];
    if (token === '{' || token === '[') depth++;
    else if (token === '}' || token === ']') depth--;
  } while (depth > 0 && at < all.length);
  return at;
}

/** Returns the position of a member of the object at `at`. Of two equal members the last one counts, as in `JSON.parse`. */
function memberAt(all: readonly string[], at: number, name: string): number | undefined {
  if (all[at] !== '{') return undefined;
  let found: number | undefined;
  for (let next = at + 1; next < all.length && all[next] !== '}'; ) {
    if (JSON.parse(all[next] as string) === name) found = next + 2;
    next = afterValue(all, next + 2);
    if (all[next] === ',') next++;
  }
  return found;
}

/** Returns the position of an element of the array at `at`. */
function elementAt(all: readonly string[], at: number, index: number): number | undefined {
  if (all[at] !== '[') return undefined;
  let next = at + 1;
  for (let passed = 0; passed < index && all[next] !== ']'; passed++) {
    next = afterValue(all, next);
    if (all[next] === ',') next++;
  }
  return all[next] === ']' ? undefined : next;
}

/** Returns the text of a value inside a valid JSON text. The path names members, and numbers elements. */
export function valueText(text: string, path: readonly (string | number)[]): string | undefined {
  const all = tokens(text);
  let at: number | undefined = 0;
  for (const step of path) {
    at = typeof step === 'string' ? memberAt(all, at, step) : elementAt(all, at, step);
    if (at === undefined) return undefined;
  }
  return all.slice(at, afterValue(all, at)).join('');
}

/** Returns a value of others as an object, or an empty one for any other type. */
export function objectOf(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}
