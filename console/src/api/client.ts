// Requests to the admin API. Every address is relative to the page, so that the console works below a proxy's prefix.
import { OPERATIONS } from './operations';
import type { components } from './schema';

export type Schemas = components['schemas'];
export type Operation = keyof typeof OPERATIONS;

/** Returns whether a fault's field is this one, or one of its members. */
export function isPartOf(path: string, field: string): boolean {
  return path === field || path.startsWith(`${field}.`) || path.startsWith(`${field}[`);
}

/** A refusal of the admin API (RFC 9457). */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly kind: string,
    detail: string,
    readonly faults: readonly { field: string; detail: string }[],
    readonly requestId: string | null = null,
  ) {
    super(detail);
  }

  /** Returns the text for a field, or for one of its members. */
  of(field: string): string | undefined {
    const found = this.faults.filter(fault => isPartOf(fault.field, field));
    return found.length ? found.map(fault => fault.detail).join('; ') : undefined;
  }
}

const root = new URL('../', document.baseURI);
/** Returns the key of the console's pages at this origin. Its cookie reaches the other ports of the host too, and counts only with the key. */
function pageKey(): string {
  let key = localStorage.getItem('page-key');
  if (!key) {
    key = Array.from(crypto.getRandomValues(new Uint8Array(32)), byte => byte.toString(16).padStart(2, '0')).join('');
    localStorage.setItem('page-key', key);
  }
  return key;
}

export interface Options {
  params?: Record<string, string>;
  query?: Record<string, string | number | boolean | undefined>;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

function segment(value: string): string {
  // A URL cannot have these as segments: they would name another address.
  if (value === '.' || value === '..') throw new Problem(0, 'page', `The name ${value} cannot be in an address. Use the command line.`, []);
  return encodeURIComponent(value);
}

function address(path: string, { params = {}, query = {} }: Options): URL {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => segment(params[name] ?? ''));
  const url = new URL(filled.replace(/^\//, ''), root);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== '') url.searchParams.set(name, String(value));
  }
  return url;
}

/** Sends a request and returns the response, whatever its status. */
export async function send(method: string, path: string, options: Options = {}): Promise<Response> {
  const { body, headers = {}, signal } = options;
  const init: RequestInit = { method, headers: { 'mcp-broker-console': pageKey(), ...headers }, credentials: 'same-origin', cache: 'no-store', redirect: 'error' };
  if (signal) init.signal = signal;
  if (body !== undefined) {
    init.body = typeof body === 'string' ? body : JSON.stringify(body);
    init.headers = { 'content-type': 'application/json', ...init.headers };
  }
  const target = address(path, options);
  try {
    return await fetch(target, init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, 'unreachable', 'The broker does not answer.', []);
  }
}

/** Reads a refusal. */
export async function problemOf(response: Response): Promise<Problem> {
  const text = await response.text();
  try {
    const read = JSON.parse(text);
    const kind = String(read.type ?? '').replace('urn:mcp-broker:problem:', '');
    const faults = read.faults ?? (read.field ? [{ field: read.field, detail: read.detail }] : []);
    return new Problem(response.status, kind, read.detail ?? read.error?.message ?? response.statusText, faults);
  } catch {
    return new Problem(response.status, 'other', text.slice(0, 300) || response.statusText, []);
  }
}

type Listener = (problem: Problem) => void;
let onSignedOut: Listener = () => {};

/** Sets what happens when a request finds that the login has ended. */
export function whenSignedOut(listener: Listener): void {
  onSignedOut = listener;
}

/** Calls an operation. The key is the one of the OpenAPI document: `GET /admin/v1/tenants`. */
export async function call<T>(operation: Operation, options: Options = {}): Promise<T> {
  return (await callTagged<T>(operation, options)).value;
}

async function success(operation: Operation, options: Options): Promise<Response> {
  const [method, path] = operation.split(' ') as [string, string];
  const response = await send(method, path, options);
  return response.ok ? response : refuse(response);
}

/** Throws the problem of a refusal. One of the login ends it. */
export async function refuse(response: Response): Promise<never> {
  const problem = await problemOf(response);
  if (response.status === 401) onSignedOut(problem);
  throw problem;
}

/** Calls an operation. Returns the answer as it was sent, where numbers have all their digits. */
export async function callText(operation: Operation, options: Options = {}): Promise<string> {
  return (await success(operation, options)).text();
}

/** Calls an operation. Returns the value with its entity tag. */
export async function callTagged<T>(operation: Operation, options: Options = {}): Promise<{ value: T; tag: string | null }> {
  const response = await success(operation, options);
  const tag = response.headers.get('etag');
  if (response.status === 204) return { value: undefined as T, tag };
  return { value: (await response.json()) as T, tag };
}

/** Returns a whole list, page by page. `show` gets what there is so far. */
export async function callAll<T>(
  operation: Operation,
  member: string,
  options: Options = {},
  show?: (entries: T[]) => void,
): Promise<T[]> {
  const entries: T[] = [];
  let after: string | undefined;
  do {
    const page = await call<Record<string, unknown>>(operation, { ...options, query: { ...options.query, limit: 1000, after } });
    entries.push(...(page[member] as T[]));
    after = page.next as string | undefined;
    if (after) show?.([...entries]);
  } while (after);
  return entries;
}
