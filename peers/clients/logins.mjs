// The 2.x client of the TypeScript SDK takes the steps of logins.py, with the same arguments:
// `logins.mjs URL REDIRECT_URI TOOL TOOL_WITH_SCOPE`.
import assert from 'node:assert/strict';

import { peersOf } from './checks.mjs';

const { Client, StreamableHTTPClientTransport, UnauthorizedError } = peersOf('typescript2')('@modelcontextprotocol/client');

const [url, redirectUri, tool, toolWithScope] = process.argv.slice(2);

class Provider {
  requests = [];

  get redirectUrl() {
    return redirectUri;
  }
  get clientMetadata() {
    return { client_name: 'peer', redirect_uris: [redirectUri] };
  }
  clientInformation() {
    return this.client;
  }
  saveClientInformation(client) {
    this.client = client;
  }
  tokens() {
    return this.held;
  }
  saveTokens(tokens) {
    this.held = tokens;
  }
  saveCodeVerifier(verifier) {
    this.verifier = verifier;
  }
  codeVerifier() {
    return this.verifier;
  }

  // Follows redirects up to the one that leads back to the client, as a browser would.
  async redirectToAuthorization(start) {
    this.requests.push(start.searchParams);
    let place = start;
    while (!place.href.startsWith(redirectUri)) {
      const answer = await fetch(place, { redirect: 'manual' });
      assert.ok([302, 303].includes(answer.status), `${answer.status} ${await answer.text()}`);
      place = new URL(answer.headers.get('location'), place);
    }
    assert.equal(place.searchParams.get('error'), null, place.href);
    this.answer = place.searchParams;
  }
}

const provider = new Provider();
let transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });

// Runs a step, and once more after a login if it needs one.
async function authorized(step) {
  try {
    return await step();
  } catch (error) {
    if (!(error instanceof UnauthorizedError || error.cause instanceof UnauthorizedError)) throw error;
    await transport.finishAuth(provider.answer);
    return step();
  }
}

let client;
await authorized(async () => {
  client = new Client({ name: 'peer', version: '1' });
  transport = provider.held ? new StreamableHTTPClientTransport(new URL(url), { authProvider: provider }) : transport;
  await client.connect(transport);
});
assert.equal(provider.requests.length, 1);
console.log('ok logged in with', provider.client.client_id);
const { tools } = await client.listTools();
assert.deepEqual(tools.map(({ name }) => name).sort(), [tool, toolWithScope].sort());
console.log('ok tools are listed');
const call = async name => assert.ok(!(await authorized(() => client.callTool({ name, arguments: {} }))).isError);
await call(tool);
assert.equal(provider.requests.length, 1);
console.log('ok a call without another login');
await call(toolWithScope);
assert.equal(provider.requests.length, 2);
const asked = provider.requests.map(request => request.get('scope').split(' '));
assert.ok(asked[0].every(scope => asked[1].includes(scope)) && asked[0].length < asked[1].length, asked);
console.log('ok a call with one more scope, after one more login');
console.log('ok resource', provider.requests[0].get('resource'));
await call(tool);
assert.equal(provider.requests.length, 2);
console.log('ok both scopes are held');
await client.close();
