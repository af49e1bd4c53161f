// Addresses of views, in the fragment: #/backends/acme/files?state=failed. They survive reloads, and Back returns to them.
import { signal } from '@preact/signals';

export interface Route {
  /** First part of the path. */
  view: string;
  rest: string[];
  query: URLSearchParams;
}

/** Returns a part as it is if a person wrote a percent sign that encodes nothing. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function read(): Route {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?', 2);
  const [view = '', ...rest] = path.split('/').map(decoded);
  return { view: view || 'overview', rest, query: new URLSearchParams(query) };
}

export const route = signal<Route>(read());

addEventListener('hashchange', () => {
  route.value = read();
});

/** Returns the address of a view. */
export function href(view: string, rest: string[] = [], query: Record<string, string | undefined> = {}): string {
  const given = Object.entries(query).filter((pair): pair is [string, string] => Boolean(pair[1]));
  const text = given.length ? `?${new URLSearchParams(given)}` : '';
  return `#/${[view, ...rest].map(encodeURIComponent).join('/')}${text}`;
}

export function go(address: string): void {
  location.hash = address;
}

/** Changes the query of the address without a new entry in the history. */
export function setQuery(changes: Record<string, string>): void {
  const { view, rest, query } = route.value;
  const next = { ...Object.fromEntries(query), ...changes };
  history.replaceState(null, '', href(view, rest, next));
  route.value = read();
}
