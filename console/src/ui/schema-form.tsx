// Fields for the members of a JSON Schema. What no field fits is entered as JSON.
import { compact, objectOf, RawJson } from '../json';
import { Field, Input, Select } from './controls';
import { Text } from './text';

export type Schema = Record<string, unknown>;
export type Drafts = Record<string, string>;

type Kind = 'text' | 'long' | 'number' | 'integer' | 'boolean' | 'choice' | 'lines' | 'json';

/** Returns the named properties of a schema of others, which may be malformed. */
export function propertiesOf(schema: Schema): [string, Schema][] {
  return Object.entries(objectOf(schema['properties'])) as [string, Schema][];
}

export function requiredOf(schema: Schema): Set<unknown> {
  return new Set(Array.isArray(schema['required']) ? schema['required'] : []);
}

function kindOf(schema: Schema): Kind {
  if (typeof schema !== 'object' || schema === null) return 'json';
  const type = Array.isArray(schema['type']) ? schema['type'].find(one => one !== 'null') : schema['type'];
  if (Array.isArray(schema['enum']) && schema['enum'].every(one => typeof one === 'string')) return 'choice';
  if (Array.isArray(schema['oneOf']) && (schema['oneOf'] as Schema[]).every(one => typeof one?.['const'] === 'string')) return 'choice';
  if (type === 'string') return Number(schema['maxLength'] ?? 0) > 400 || schema['contentMediaType'] ? 'long' : 'text';
  if (type === 'number' || type === 'integer' || type === 'boolean') return type;
  const items = schema['items'] as Schema | undefined;
  if (type === 'array' && items?.['type'] === 'string' && !items['enum']) return 'lines';
  return 'json';
}

function choices(schema: Schema): [string, string][] {
  if (Array.isArray(schema['oneOf'])) return (schema['oneOf'] as Schema[]).map(one => [String(one['const']), String(one['title'] ?? one['const'])]);
  const names = Array.isArray(schema['enumNames']) ? schema['enumNames'] : [];
  return (schema['enum'] as string[]).map((one, at) => [one, String(names[at] ?? one)]);
}

/** Returns the fields of a schema with its defaults. */
export function draftsOf(schema: Schema): Drafts {
  return Object.fromEntries(
    propertiesOf(schema).map(([name, property]) => {
      const preset = property?.['default'];
      if (preset === undefined) return [name, ''];
      const kind = kindOf(property);
      if (kind === 'json') return [name, JSON.stringify(preset, null, 2)];
      if (kind === 'lines') return [name, Array.isArray(preset) ? preset.join('\n') : ''];
      return [name, typeof preset === 'object' ? '' : String(preset)];
    }),
  );
}

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const INTEGER = /^-?(0|[1-9]\d*)$/;

/** Reads a JSON text, and keeps its numbers as they are. */
export function readJson(text: string): { value: RawJson } | { fault: string } {
  try {
    JSON.parse(text);
    return { value: new RawJson(compact(text)) };
  } catch (error) {
    return { fault: `is not JSON: ${(error as Error).message}` };
  }
}

/** Reads the fields. Numbers and JSON stay the text that was entered. A field at fault is named with what is wrong. */
export function valueOf(schema: Schema, drafts: Drafts): { value: Record<string, unknown>; faults: Record<string, string> } {
  const value: Record<string, unknown> = {};
  const faults: Record<string, string> = {};
  const required = requiredOf(schema);
  for (const [name, property] of propertiesOf(schema)) {
    const text = drafts[name] ?? '';
    const kind = kindOf(property);
    if (text === '') {
      if (required.has(name)) {
        if (kind === 'text' || kind === 'long') value[name] = '';
        else if (kind === 'lines') value[name] = [];
        else faults[name] = 'is required';
      }
      continue;
    }
    if (kind === 'number' || kind === 'integer') {
      const entered = text.trim();
      if ((kind === 'integer' ? INTEGER : NUMBER).test(entered)) value[name] = new RawJson(entered);
      else faults[name] = kind === 'integer' ? 'is not a whole number' : 'is not a number';
    } else if (kind === 'boolean') value[name] = text === 'true';
    else if (kind === 'lines') value[name] = text.split('\n').filter(Boolean);
    else if (kind === 'json') {
      const read = readJson(text);
      if ('fault' in read) faults[name] = read.fault;
      else value[name] = read.value;
    } else value[name] = text;
  }
  return { value, faults };
}

interface SchemaFormProps {
  schema: Schema;
  drafts: Drafts;
  set: (drafts: Drafts) => void;
  faults: Record<string, string>;
}

export function SchemaForm({ schema, drafts, set, faults }: SchemaFormProps) {
  const required = requiredOf(schema);
  const all = propertiesOf(schema);
  if (!all.length) return <p class="faint">It takes no arguments.</p>;
  return (
    <>
      {all.map(([name, property]) => {
        const kind = kindOf(property);
        const change = (text: string) => set({ ...drafts, [name]: text });
        const about = typeof property?.['description'] === 'string' ? <Text multiline>{property['description']}</Text> : undefined;
        const shared = { label: typeof property?.['title'] === 'string' ? property['title'] : name, required: required.has(name), fault: faults[name], hint: about, value: drafts[name] ?? '', set: change };
        if (kind === 'choice') return <Select key={name} {...shared} options={[['', '–'], ...choices(property)]} />;
        if (kind === 'boolean') {
          return (
            <Field key={name} label={shared.label} hint={about} fault={shared.fault} required={shared.required}>
              {given => (
                <select {...given} value={shared.value} onChange={event => change(event.currentTarget.value)}>
                  <option value="">–</option>
                  <option value="true">true</option>
                  <option value="false">false</option>
                </select>
              )}
            </Field>
          );
        }
        if (kind === 'number' || kind === 'integer') return <Input key={name} {...shared} required={false} type="text" placeholder={kind} />;
        if (kind === 'text') return <Input key={name} {...shared} required={false} />;
        return <Input key={name} {...shared} required={false} lines={kind === 'json' ? 4 : 3} code={kind === 'json'} placeholder={kind === 'json' ? 'JSON' : kind === 'lines' ? 'One per line' : ''} />;
      })}
    </>
  );
}
