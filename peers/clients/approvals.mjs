// The 2.x client of the TypeScript SDK, whose calls wait for the approval of a person.
//
//   node approvals.mjs URL MODE
//
// MODE is `legacy` (sessions) or `auto` (2026-07-28). The test approves what is
// sent to Ann and denies the rest.
import assert from 'node:assert/strict';

import { Checks, peersOf } from './checks.mjs';

const { Client, StreamableHTTPClientTransport } = peersOf('typescript2')('@modelcontextprotocol/client');

const [url, mode] = process.argv.slice(2);
const checks = new Checks();
const client = new Client({ name: 'peer', version: '1' }, { versionNegotiation: { mode } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));

await checks.run('the revision is that of the mode', async () => {
  const revision = mode === 'auto' ? '2026-07-28' : '2025-11-25';
  assert.equal(client.getNegotiatedProtocolVersion(), revision);
});
await checks.run('a call that a person approves is executed', async () => {
  const result = await client.callTool({ name: 'b__send', arguments: { to: 'Ann' } });
  assert.equal(result.content[0].text, 'sent Ann');
});
await checks.run('a call that a person denies is an error of the tool', async () => {
  const result = await client.callTool({ name: 'b__send', arguments: { to: 'Eve' } });
  assert.equal(result.isError, true);
  assert.match(result.content[0].text, /denied this call/);
});
await client.close();
process.exit(checks.failed === 0 ? 0 : 1);
