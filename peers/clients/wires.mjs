// A real TypeScript SDK client over a transport that is not Streamable HTTP, in front of server-everything.
//
//   node wires.mjs KIND URL BACKEND
//
// KIND is `sse` (HTTP+SSE of 2024-11-05) or `websocket`; BACKEND is the server's name in the broker.
import assert from 'node:assert/strict';
import { Checks, Inbox, requirePeer } from './checks.mjs';

const { Client } = requirePeer('@modelcontextprotocol/sdk/client/index.js');
const { SSEClientTransport } = requirePeer('@modelcontextprotocol/sdk/client/sse.js');
const { WebSocketClientTransport } = requirePeer('@modelcontextprotocol/sdk/client/websocket.js');
const mcp = requirePeer('@modelcontextprotocol/sdk/types.js');

const [kind, url, backend] = process.argv.slice(2);
const transports = { sse: SSEClientTransport, websocket: WebSocketClientTransport };
if (!backend || !transports[kind]) {
  console.error('usage: node wires.mjs sse|websocket URL BACKEND');
  process.exit(64);
}
const named = (name) => `${backend}__${name}`;
const checks = new Checks();
const client = new Client({ name: 'typescript-peer', version: '1.0.0' }, { capabilities: { roots: { listChanged: true }, sampling: {} } });
const updates = new Inbox();
client.setRequestHandler(mcp.ListRootsRequestSchema, () => ({ roots: [{ uri: 'file:///srv/project', name: 'project' }] }));
client.setRequestHandler(mcp.CreateMessageRequestSchema, (request) => ({
  role: 'assistant',
  model: 'peer',
  content: { type: 'text', text: `sampled: ${request.params.messages.at(-1).content.text}` },
}));
client.setNotificationHandler(mcp.ResourceUpdatedNotificationSchema, ({ params }) => updates.push(params.uri));

const call = async (name, args) => (await client.callTool({ name: named(name), arguments: args })).content[0].text;

await checks.run('connect', () => client.connect(new transports[kind](new URL(url))));
await checks.run('ping', () => client.ping());
await checks.run('tools are listed', async () => {
  const names = (await client.listTools()).tools.map((tool) => tool.name);
  assert.ok(names.includes(named('echo')), names.join(' '));
});
await checks.run('a tool is called', async () => assert.match(await call('echo', { message: 'hello' }), /hello/));
await checks.run('a large message goes there and back', async () => {
  const message = 'x'.repeat(1 << 20);
  assert.ok((await call('echo', { message })).includes(message));
});
await checks.run('many calls at once', async () => {
  const texts = await Promise.all(Array.from({ length: 50 }, (_, n) => call('echo', { message: `number ${n}.` })));
  texts.forEach((text, n) => assert.ok(text.includes(`number ${n}.`), text));
});
await checks.run('progress comes before the answer', async () => {
  const steps = [];
  const params = { name: named('trigger-long-running-operation'), arguments: { duration: 1, steps: 3 } };
  await client.callTool(params, undefined, { onprogress: ({ progress }) => steps.push(progress) });
  // The last step comes right before the answer; the SDK may have removed its handler by then.
  assert.deepEqual(steps.slice(0, 2), [1, 2]);
});
await checks.run('the server samples the client', async () => {
  assert.match(await call('trigger-sampling-request', { prompt: 'hi', maxTokens: 10 }), /sampled: /);
});
await checks.run('resources are read', async () => {
  const { resources } = await client.listResources();
  const { contents } = await client.readResource({ uri: resources[0].uri });
  assert.ok(contents.length > 0);
});
await checks.run('an unknown tool is an error', () => assert.rejects(client.callTool({ name: named('no-such-tool'), arguments: {} })));
await checks.run('close', () => client.close());
process.exit(checks.failed === 0 ? 0 : 1);
