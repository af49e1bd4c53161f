// How clients reach the broker.
import { useState } from 'preact/hooks';

import { call, type Schemas } from '../api/client';
import { useLive } from '../live';
import { may } from '../session';
import { Copy, Failed, Input, Note, Select } from '../ui/controls';
import { Card, Page } from '../ui/page';

const KEY = 'YOUR_KEY';

interface Client {
  name: string;
  where: string;
  text: (url: string, withKey: boolean) => string;
}

function json(value: unknown): string {
  return JSON.stringify(value, null, 2);
}

const CLIENTS: readonly Client[] = [
  {
    name: 'Claude Code',
    where: 'In a shell',
    text: (url, withKey) => `claude mcp add --transport http broker ${url}${withKey ? ` \\\n  --header "Authorization: Bearer ${KEY}"` : ''}`,
  },
  {
    name: 'VS Code',
    where: '.vscode/mcp.json',
    text: (url, withKey) => json({ servers: { broker: { type: 'http', url, ...(withKey ? { headers: { Authorization: `Bearer ${KEY}` } } : {}) } } }),
  },
  {
    name: 'Cursor',
    where: '~/.cursor/mcp.json',
    text: (url, withKey) => json({ mcpServers: { broker: { url, ...(withKey ? { headers: { Authorization: `Bearer ${KEY}` } } : {}) } } }),
  },
  {
    name: 'Python (mcp)',
    where: 'In a program',
    text: (url, withKey) =>
      `from mcp import ClientSession\nfrom mcp.client.streamable_http import streamablehttp_client\n\nasync with streamablehttp_client(\n    "${url}"${withKey ? `,\n    headers={"Authorization": "Bearer ${KEY}"}` : ''},\n) as (read, write, _):\n    async with ClientSession(read, write) as session:\n        await session.initialize()\n        print(await session.list_tools())`,
  },
  {
    name: 'TypeScript (SDK)',
    where: 'In a program',
    text: (url, withKey) =>
      `import { Client } from '@modelcontextprotocol/sdk/client/index.js';\nimport { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';\n\nconst client = new Client({ name: 'my-client', version: '1.0.0' });\nawait client.connect(new StreamableHTTPClientTransport(new URL('${url}')${withKey ? `, {\n  requestInit: { headers: { Authorization: 'Bearer ${KEY}' } },\n}` : ''}));\nconsole.log(await client.listTools());`,
  },
  {
    name: 'curl',
    where: 'In a shell',
    text: (url, withKey) =>
      `curl -s ${url} \\\n  -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \\\n${withKey ? `  -H 'Authorization: Bearer ${KEY}' \\\n` : ''}  -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}'`,
  },
];

export function Setup() {
  const [base, setBase] = useState<string>();
  const [endpoint, setEndpoint] = useState('');
  const [credential, setCredential] = useState('key');
  const overview = useLive<Schemas['OverviewView']>(() => call('GET /admin/v1/overview'), []);
  const backends = useLive<Schemas['StatusList']>(() => call('GET /admin/v1/backends'), []);
  const shown = base ?? overview.value?.address ?? `${location.protocol}//${location.hostname}:8080`;
  const url = `${shown.replace(/\/+$/, '')}/mcp${endpoint ? `/${endpoint}` : ''}`;
  const names = [...new Set((backends.value?.backends ?? []).map(one => one.backend))].sort();
  return (
    <Page title="Client setup" lead="What a client needs: one address, and a key of its tenant." problem={overview.problem}>
      <Card>
        <Failed problem={backends.problem} what="The endpoints of single backends are" tone="warn" />
        <form onSubmit={event => event.preventDefault()}>
          <div class="pair">
            <Input label="Address of the broker" value={shown} set={setBase} code type="url" hint="As clients reach listen.http." />
            <Select label="Endpoint" value={endpoint} set={setEndpoint} options={[['', 'all backends (/mcp)'], ...names.map(name => [name, `only ${name} (/mcp/${name})`] as const)]} />
            <Select label="Credential" value={credential} set={setCredential} options={[['key', 'an API key'], ['none', 'none, or login with OAuth']]} />
          </div>
        </form>
        {credential === 'key' && (
          <Note>
            Replace {KEY} by a key.{' '}
            {may('POST /admin/v1/tenants/{tenant}/keys') && <a href="#/keys">Create a key</a>}
          </Note>
        )}
      </Card>
      <div class="cards">
        {CLIENTS.map(client => {
          const text = client.text(url, credential === 'key');
          return (
            <Card key={client.name} title={client.name} actions={<Copy text={text} label={`Copy for ${client.name}`} />}>
              <p class="faint">{client.where}</p>
              <pre class="json" tabIndex={0} role="region" aria-label={client.name}>
                {text}
              </pre>
            </Card>
          );
        })}
      </div>
    </Page>
  );
}
