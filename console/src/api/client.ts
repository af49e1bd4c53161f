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
  /** The time of an older value that stays on the page. */
  knownAt?: Date;

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

export function asProblem(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, 'page', `The page has a fault: ${String(error)}`, []);
}

/** Longest wait for the answer to a GET. Without it, a connection that hangs would show old values as current. */
const ANSWER_MS = 30_000;

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
  let late: AbortController | undefined;
  if (signal) init.signal = signal;
  else if (method === 'GET') {
    late = new AbortController();
    setTimeout(() => late?.abort(), ANSWER_MS);
    init.signal = late.signal;
  }
  if (body !== undefined) {
    init.body = typeof body === 'string' ? body : JSON.stringify(body);
    init.headers = { 'content-type': 'application/json', ...init.headers };
  }
  const target = address(path, options);
  try {
    return await fetch(target, init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, 'unreachable', late?.signal.aborted ? `The broker has not answered within ${ANSWER_MS / 1_000} s.` : 'The broker does not answer.', []);
  }
}

/** Returns the problem of an answer that is not the broker's, such as a page of a proxy. */
function foreign(response: Response): Problem {
  const status = `${response.status} ${response.statusText}`.trim();
  return new Problem(response.status, 'foreign', `The answer (${status}) is not from the broker. A proxy in front of the broker may have sent it.`, []);
}

async function textOf(response: Response): Promise<string> {
  try {
    return await response.text();
  } catch {
    throw new Problem(0, 'unreachable', 'The answer of the broker broke off.', []);
  }
}

/** Reads an answer as JSON. */
export async function jsonFrom<T>(response: Response): Promise<T> {
  const text = await textOf(response);
  try {
    return JSON.parse(text) as T;
  } catch {
    throw foreign(response);
  }
}

/** Reads a refusal. */
export async function problemOf(response: Response): Promise<Problem> {
  const text = await textOf(response);
  try {
    const read = JSON.parse(text);
    const kind = String(read.type ?? '').replace('urn:mcp-broker:problem:', '');
    const faults = read.faults ?? (read.field ? [{ field: read.field, detail: read.detail }] : []);
    return new Problem(response.status, kind, read.detail ?? read.error?.message ?? `The broker refuses the request with status ${response.status}.`, faults);
  } catch {
    return foreign(response);
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
  return textOf(await success(operation, options));
}

/** Calls an operation. Returns the value with its entity tag. */
export async function callTagged<T>(operation: Operation, options: Options = {}): Promise<{ value: T; tag: string | null }> {
  const response = await success(operation, options);
  const tag = response.headers.get('etag');
  if (response.status === 204) return { value: undefined as T, tag };
  return { value: await jsonFrom<T>(response), tag };
}

/** Entries of a list that the page reads at most. */
export const LIST_MAX = 20_000;

/** A list, with whether the broker has more entries. */
export interface List<T> extends Array<T> {
  isCut?: boolean;
}

/** Returns a list, page by page. */
export async function callAll<T>(operation: Operation, member: string, options: Options = {}): Promise<List<T>> {
  const entries: List<T> = [];
  let after: string | undefined;
  do {
    const page = await call<Record<string, unknown>>(operation, { ...options, query: { ...options.query, limit: 1000, after } });
    entries.push(...(page[member] as T[]));
    after = page.next as string | undefined;
  } while (after && entries.length < LIST_MAX);
  entries.isCut = Boolean(after);
  return entries;
}
