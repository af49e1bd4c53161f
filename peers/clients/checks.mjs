// Named checks with deadlines for the node clients. Each prints `ok NAME` or `FAIL NAME: why`, and
// failures are counted. The Python clients print the same lines, so that one reader on the Rust side
// reads them all.
import { createRequire } from 'node:module';
import { homedir } from 'node:os';
import { join } from 'node:path';

const cache = process.env.MCP_BROKER_CACHE ?? join(homedir(), '.cache', 'mcp-broker');

/** Loads a module of the pinned peers, which are outside the clone, where node does not search by itself. */
export const requirePeer = peersOf('node');

/** Returns a loader for a part of the peers that is installed in a folder of its own. */
export function peersOf(part) {
  return createRequire(join(cache, 'peers', part, 'package.json'));
}

export class Checks {
  failed = 0;

  async run(name, body, deadlineMs = 30_000) {
    try {
      await within(deadlineMs, name, body());
      console.log(`ok ${name}`);
    } catch (error) {
      this.failed += 1;
      console.log(`FAIL ${name}: ${oneLine(error)}`);
    }
  }
}

export async function within(deadlineMs, what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took longer than ${deadlineMs} ms`)), deadlineMs);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** The items that arrived so far, with a wait for one that matches. */
export class Inbox {
  items = [];
  waiting = [];

  push(item) {
    this.items.push(item);
    this.waiting = this.waiting.filter(({ matches, resolve }) => {
      if (!matches(item)) return true;
      resolve(item);
      return false;
    });
  }

  arrival(what, matches, deadlineMs = 10_000) {
    const already = this.items.find(matches);
    if (already !== undefined) return Promise.resolve(already);
    const promise = new Promise((resolve) => this.waiting.push({ matches, resolve }));
    return within(deadlineMs, `waiting for ${what}`, promise);
  }
}

/** Returns the error with which a promise must fail. */
export async function failureOf(promise) {
  let value;
  try {
    value = await promise;
  } catch (error) {
    return error;
  }
  throw new Error(`expected a failure, got ${JSON.stringify(value)}`);
}

export function oneLine(error) {
  const text = error instanceof Error ? `${error.message}` : String(error);
  return text.replaceAll(/\s+/g, ' ').slice(0, 600);
}
