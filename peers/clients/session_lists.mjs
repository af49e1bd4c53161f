// The TypeScript SDK in front of backends that change their lists for one session.
//
//   node session_lists.mjs URL
//
// `everything` is server-everything, whose gzip-file-as-resource makes a resource of the session. `toolsets` is
// peers/servers/toolsets.py, whose enable_toolset registers a tool at run time.
import assert from 'node:assert/strict';
import { gunzipSync } from 'node:zlib';
import { Checks, Inbox, requirePeer } from './checks.mjs';

const { Client } = requirePeer('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = requirePeer('@modelcontextprotocol/sdk/client/streamableHttp.js');
const mcp = requirePeer('@modelcontextprotocol/sdk/types.js');

const [url] = process.argv.slice(2);
if (!url) {
  console.error('usage: node session_lists.mjs URL');
  process.exit(64);
}
const checks = new Checks();

async function connected() {
  const client = new Client({ name: 'typescript-peer', version: '1.0.0' }, { capabilities: { roots: {} } });
  const changes = new Inbox();
  client.setRequestHandler(mcp.ListRootsRequestSchema, () => ({ roots: [] }));
  client.setNotificationHandler(mcp.ToolListChangedNotificationSchema, () => changes.push('tools'));
  client.setNotificationHandler(mcp.ResourceListChangedNotificationSchema, () => changes.push('resources'));
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return { client, changes };
}

const heard = (inbox, kind) => inbox.arrival(`a change of the ${kind}`, (one) => one === kind);
const tools = async (client) => (await client.listTools()).tools.map((tool) => tool.name);
const resources = async (client) => (await client.listResources()).resources.map((one) => one.uri);
const call = async (client, name) => (await client.callTool({ name, arguments: {} })).content[0].text;

const own = await connected();
const other = await connected();
const uri = 'everything+demo://resource/session/note.gz';

await checks.run('a resource of the session is announced, listed and read', async () => {
  const args = { name: 'note.gz', data: 'data:text/plain,hello', outputType: 'resourceLink' };
  const { content } = await own.client.callTool({ name: 'everything__gzip-file-as-resource', arguments: args });
  assert.equal(content[0].uri, uri);
  await heard(own.changes, 'resources');
  assert.ok((await resources(own.client)).includes(uri));
  const { contents } = await own.client.readResource({ uri });
  assert.equal(gunzipSync(Buffer.from(contents[0].blob, 'base64')).toString(), 'hello');
});
await checks.run('a tool that is registered at run time is announced, listed and called', async () => {
  own.changes.items.length = 0; // server-everything registers tools when a session begins
  await call(own.client, 'toolsets__enable_toolset');
  await heard(own.changes, 'tools');
  assert.ok((await tools(own.client)).includes('toolsets__word'));
  assert.equal(await call(own.client, 'toolsets__word'), 'abracadabra');
});
await checks.run('another session has neither', async () => {
  assert.ok(!(await tools(other.client)).includes('toolsets__word'));
  assert.ok(!(await resources(other.client)).includes(uri));
  assert.ok((await tools(own.client)).includes('toolsets__word'));
});
await checks.run('a tool that is removed is not listed any more', async () => {
  own.changes.items.length = 0;
  await call(own.client, 'toolsets__disable_toolset');
  await heard(own.changes, 'tools');
  assert.ok(!(await tools(own.client)).includes('toolsets__word'));
});
await own.client.close();
await other.client.close();
process.exit(checks.failed === 0 ? 0 : 1);
