// The 2.x client of the TypeScript SDK, with sessions (its default) and with `versionNegotiation: auto`.
// It must see the same `servers/both_eras.py` through the broker as directly. The arguments and the
// steps are those of eras.py.
import assert from 'node:assert/strict';

import { Checks, Inbox, oneLine, peersOf } from './checks.mjs';

const { Client, StreamableHTTPClientTransport } = peersOf('typescript2')('@modelcontextprotocol/client');

const NOTE = 'note://one';
const REVISIONS = { legacy: '2025-11-25', auto: '2026-07-28' };
const [direct, broker, ...modes] = process.argv.slice(2);

class Peer {
  asked = [];
  updated = new Inbox();

  static async connect(url, mode, declares = true) {
    const peer = new Peer();
    const capabilities = declares ? { sampling: {}, roots: {}, elicitation: { form: {} } } : {};
    peer.client = new Client({ name: 'peer', version: '1' }, { capabilities, versionNegotiation: { mode } });
    if (declares) peer.#answers();
    peer.client.setNotificationHandler('notifications/resources/updated', ({ params }) => peer.updated.push(params.uri));
    await peer.client.connect(new StreamableHTTPClientTransport(new URL(url)));
    return peer;
  }

  #answers() {
    this.client.setRequestHandler('elicitation/create', ({ params }) => {
      this.asked.push(`elicitation ${params.message}`);
      return { action: 'accept', content: { name: 'Ada' } };
    });
    this.client.setRequestHandler('sampling/createMessage', ({ params }) => {
      this.asked.push(`sampling ${params.messages[0].content.text} ${params.maxTokens}`);
      return { role: 'assistant', model: 'peer', content: { type: 'text', text: 'word' } };
    });
    this.client.setRequestHandler('roots/list', () => {
      this.asked.push('roots');
      return { roots: [{ uri: 'file:///srv/project', name: 'project' }] };
    });
  }

  call(name, args, options) {
    return this.client.callTool({ name, arguments: args }, options);
  }

  async watch(body) {
    if (this.client.getNegotiatedProtocolVersion() === REVISIONS.auto) {
      const stream = await this.client.listen({ resourceSubscriptions: [NOTE] });
      const told = await body();
      await stream.close();
      return told;
    }
    await this.client.subscribeResource({ uri: NOTE });
    const told = await body();
    await this.client.unsubscribeResource({ uri: NOTE });
    return told;
  }
}

const byName = (listed, [name, ...members]) => listed
  .map((one) => Object.fromEntries([name, ...members].map((member) => [member, one[member] ?? null])))
  .sort((one, other) => (String(one[name]) < String(other[name]) ? -1 : 1));

const content = ({ content, structuredContent, isError }) => ({ content, structuredContent, isError: Boolean(isError) });

/** Returns the code of an error, which for a missing resource differs between the eras. None if there was no error. */
async function refused(promise) {
  try {
    return (await promise).isError ? -32602 : null;
  } catch (error) {
    return error.code === -32002 ? -32602 : error.code ?? oneLine(error);
  }
}

const steps = {
  async lists({ client }) {
    return {
      tools: byName((await client.listTools()).tools, ['name', 'description', 'inputSchema', 'outputSchema']),
      prompts: byName((await client.listPrompts()).prompts, ['name', 'description', 'arguments']),
      resources: byName((await client.listResources()).resources, ['uri', 'name', 'mimeType']),
      templates: byName((await client.listResourceTemplates()).resourceTemplates, ['uriTemplate', 'name']),
    };
  },
  async call(peer) {
    return content(await peer.call('echo', { message: 'quotes " \\ \u0001 ümläut 漢字 😀 \u2028' }));
  },
  async progress(peer, run) {
    const seen = new Inbox();
    const onprogress = ({ progress, total }) => seen.push([progress, total]);
    const result = await peer.call('steps', { run, count: 3, pause: 0.05 }, { onprogress });
    await seen.arrival('the last progress', ([progress]) => progress === 3);
    return [content(result), seen.items];
  },
  async input(peer) {
    peer.asked.length = 0;
    return [content(await peer.call('ask', {})), peer.asked.toSorted()];
  },
  async failingTool(peer) {
    return content(await peer.call('fail', {}));
  },
  async prompt({ client }) {
    return (await client.getPrompt({ name: 'greet', arguments: { name: 'Ada' } })).messages;
  },
  async errors(peer) {
    const prompt = await refused(peer.client.getPrompt({ name: 'no-such-prompt' }));
    const resource = await refused(peer.client.readResource({ uri: 'note://none' }));
    return [await refused(peer.call('no-such-tool', {})), resource, prompt !== null];
  },
  async resources(peer) {
    const read = async (uri) => (await peer.client.readResource({ uri })).contents;
    await peer.call('write', { text: 'before' });
    const seen = [await read('page://7/text'), await read(NOTE)];
    const told = await peer.watch(async () => {
      await peer.call('write', { text: 'after' });
      return peer.updated.arrival('the update', () => true);
    });
    return [...seen, told, await read(NOTE)];
  },
  async cancel(peer, run) {
    const [id, abort, seen] = [`${run} cancelled`, new AbortController(), new Inbox()];
    const options = { onprogress: ({ progress }) => seen.push(progress), signal: abort.signal };
    const call = refused(peer.call('steps', { run: id, count: 500, pause: 0.05 }, options));
    await seen.arrival('the first step', () => true);
    abort.abort('enough');
    await call;
    for (const until = Date.now() + 10_000; Date.now() < until; await new Promise((resolve) => setTimeout(resolve, 20))) {
      if ((await peer.call('was_cancelled', { run: id })).structuredContent.result) return 'the server was told';
    }
    return 'the server was not told';
  },
};

async function transcript(url, mode, run) {
  const peer = await Peer.connect(url, mode);
  const taken = { revision: peer.client.getNegotiatedProtocolVersion() };
  for (const [name, step] of Object.entries(steps)) {
    taken[name] = await step(peer, run).catch((error) => `failed: ${oneLine(error)}`);
  }
  await peer.client.close();
  const silent = await Peer.connect(url, mode, false);
  taken.nothingDeclared = (await refused(silent.call('ask', {}))) !== null;
  await silent.client.close();
  return taken;
}

const checks = new Checks();
for (const [backend, own] of Object.entries({ old: 'legacy', new: 'auto' })) {
  const seen = await transcript(direct, own, `direct ${backend}`);
  for (const mode of modes) {
    const through = await transcript(`${broker}/mcp/${backend}`, mode, `${mode} ${backend}`);
    for (const [name, expected] of Object.entries({ ...seen, revision: REVISIONS[mode] })) {
      await checks.run(`${mode} ${backend} ${name}`, async () => assert.deepEqual(through[name], expected));
    }
  }
}
process.exit(checks.failed > 0 ? 1 : 0);
