// The official Inspector in a headless Chromium logs in at an authorization server, and asks for another scope when a call
// needs it: `inspector.mjs URL TOOL_WITH_SCOPE SCOPE ANSWER`. The tool answers with that text. The redirect URI has the path
// /oauth/callback.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { peersOf } from './checks.mjs';

const CHROMIUM = '/usr/bin/chromium-headless-shell';
const STEP_MS = 30_000;

const [url, toolWithScope, scope, answer] = process.argv.slice(2);
const requireBrowser = peersOf('browser');
const { chromium } = requireBrowser('playwright-core');

// The Inspector takes no port 0.
async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  return port;
}

// Starts the Inspector in this process and returns the address of its page. What it prints goes nowhere else.
async function startInspector(storage) {
  Object.assign(process.env, {
    HOST: '127.0.0.1',
    CLIENT_PORT: String(await freePort()),
    MCP_SANDBOX_PORT: '0',
    MCP_AUTO_OPEN_ENABLED: 'false',
    MCP_STORAGE_DIR: storage,
    MCP_INSPECTOR_SECRET_STORE: 'memory',
  });
  const folder = join(dirname(requireBrowser.resolve('playwright-core')), '../@modelcontextprotocol/inspector');
  const { runWeb } = await import(pathToFileURL(join(folder, 'clients/web/build/index.js')).href);
  return new Promise((resolve, reject) => {
    process.stdout.write = text => {
      const found = /http:\S+MCP_INSPECTOR_API_TOKEN=\w+/.exec(text);
      if (found) resolve(found[0]);
      return true;
    };
    runWeb(['node', 'mcp-inspector-web', '--transport', 'http', '--server-url', url]).catch(reject);
  });
}

const write = process.stdout.write.bind(process.stdout);
const ok = what => write(`ok ${what}\n`);

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
const page = await browser.newPage();
page.setDefaultTimeout(STEP_MS);
// Its page asks for fonts of another host.
await page.route(({ hostname }) => hostname !== '127.0.0.1', route => route.abort());
const authorizations = [];
page.on('request', request => {
  const { searchParams } = new URL(request.url());
  const starts = request.isNavigationRequest() && request.redirectedFrom() === null;
  if (starts && searchParams.has('code_challenge')) authorizations.push(searchParams);
});

async function callTool() {
  await page.getByText('Tools', { exact: true }).first().click();
  await page.getByText(toolWithScope).first().click();
  await page.getByRole('button', { name: 'Execute Tool' }).click();
}

try {
  await page.goto(await startInspector(process.env.TMPDIR));
  await page.getByRole('switch').dispatchEvent('click');
  await page.getByText('Connected', { exact: true }).waitFor();
  assert.equal(authorizations.length, 1);
  assert.equal(authorizations[0].get('resource'), url);
  ok('logged in');

  await callTool();
  await page.getByText(`needs additional scope: ${scope}`).waitFor();
  await page.getByRole('button', { name: 'Authorize' }).click();
  await page.getByText('Authorization complete').waitFor();
  assert.equal(authorizations.length, 2);
  const asked = authorizations.map(request => request.get('scope').split(' '));
  assert.ok(!asked[0].includes(scope) && [scope, ...asked[0]].every(name => asked[1].includes(name)), String(asked));
  ok('asked for one more scope');

  // It comes back to its servers or to the tool.
  const connected = page.getByText('Connected', { exact: true });
  await connected.or(page.getByRole('button', { name: 'Execute Tool' })).first().waitFor();
  await callTool();
  await page.getByText(answer, { exact: true }).waitFor();
  assert.equal(authorizations.length, 2);
  ok('the call succeeds');
} catch (error) {
  console.error(error, await page.locator('body').innerText());
  process.exitCode = 1;
}
await browser.close();
process.exit();
