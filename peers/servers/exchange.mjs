// An authorization server for tests that exchanges tokens (RFC 8693): `@jmondi/oauth2-server` on a free port of 127.0.0.1, with
// everything in memory. Prints `exchange listening on URL` on standard error; URL is the issuer.
//
//   NODE_MODULES=$P/node/node_modules $P/node/node_modules/.bin/node peers/servers/exchange.mjs ISSUER
//
// The client `broker` (secret: `secret-of-broker`) exchanges access tokens of ISSUER, whose signature is checked with the keys that
// ISSUER publishes. The token that it gets is for the user of that token. An `actor_token` must be one that the client got with its
// credentials (client_credentials), and makes the token one of that actor. GET /tokens answers with the user, the client, the actor
// and the resource of each token that was issued, which is how a backend of tests asks about a token.

import { createPublicKey, verify } from 'node:crypto';
import { createServer } from 'node:http';
import { pathToFileURL } from 'node:url';

const modules = process.env.NODE_MODULES ?? new URL('../node_modules', import.meta.url).pathname;
const { AuthorizationServer, DateInterval, OAuthException } = await import(
  pathToFileURL(`${modules}/@jmondi/oauth2-server/dist/index.js`).href
);

const [issuerOfSubjects] = process.argv.slice(2);
const GRANT = 'urn:ietf:params:oauth:grant-type:token-exchange';
const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token';
const broker = { id: 'broker', name: 'broker', secret: 'secret-of-broker', redirectUris: [], allowedGrants: [GRANT, 'client_credentials'], scopes: [] };
const scopes = [{ name: 'mcp:read' }, { name: 'mcp:write' }];
const tokens = {};

async function json(url) {
  return (await fetch(url)).json();
}

// Returns the claims of a token that ISSUER signed and that has not expired.
async function claimsOf(token) {
  const [header, payload, signature] = token.split('.');
  const decoded = (part) => JSON.parse(Buffer.from(part, 'base64url').toString());
  const { jwks_uri } = await json(`${issuerOfSubjects}/.well-known/oauth-authorization-server`);
  const { keys } = await json(jwks_uri);
  const jwk = keys.find((known) => known.kid === decoded(header).kid);
  const key = { key: createPublicKey({ key: jwk, format: 'jwk' }), dsaEncoding: 'ieee-p1363' };
  const isSigned = verify('sha256', Buffer.from(`${header}.${payload}`), key, Buffer.from(signature, 'base64url'));
  const claims = decoded(payload);
  if (!isSigned || claims.iss !== issuerOfSubjects || claims.exp * 1000 < Date.now()) throw OAuthException.badRequest('subject_token');
  return claims;
}

const clients = {
  getByIdentifier: async (id) => (id === broker.id ? broker : undefined),
  isClientValid: async (grant, client, secret) => client.secret === secret && client.allowedGrants.includes(grant),
};
const issued = {
  issueToken: async (client, scopes, user) => ({
    accessToken: `exchanged-${crypto.randomUUID()}`,
    accessTokenExpiresAt: new DateInterval('1h').getEndDate(),
    refreshToken: null,
    refreshTokenExpiresAt: null,
    client,
    scopes,
    user,
  }),
  persist: async () => {},
};
const scopeStore = {
  getAllByIdentifiers: async (names) => scopes.filter(({ name }) => names.includes(name)),
  finalize: async (wanted) => wanted,
};
const authorization = new AuthorizationServer(clients, issued, scopeStore, 'a key of tests that is not a secret at all');
authorization.enableGrantType('client_credentials');
authorization.enableGrantType({
  grant: GRANT,
  processTokenExchange: async ({ resource, subjectToken, subjectTokenType, requestedTokenType, actorToken, actorTokenType }) => {
    if (actorToken && !(actorTokenType === ACCESS_TOKEN && tokens[actorToken]?.user === undefined && tokens[actorToken]))
      throw OAuthException.badRequest('actor_token');
    if (subjectTokenType !== ACCESS_TOKEN || requestedTokenType !== ACCESS_TOKEN) throw OAuthException.badRequest('token type');
    const { sub } = await claimsOf(subjectToken);
    return { id: sub, resource };
  },
});

async function whole(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

// Answers a token request, and notes whom the token is for.
async function token(request) {
  const body = Object.fromEntries(new URLSearchParams(await whole(request)));
  const asked = { headers: request.headers, query: {}, body };
  try {
    const { status, body: answer } = await authorization.respondToAccessTokenRequest(asked);
    const of = { client: broker.id, resource: body.resource };
    if (body.grant_type === GRANT) of.user = (await claimsOf(body.subject_token)).sub;
    if (body.actor_token) of.act = { sub: tokens[body.actor_token].client };
    tokens[answer.access_token] = of;
    return [status, answer];
  } catch (error) {
    return [error.status ?? 500, { error: error.errorType ?? 'server_error' }];
  }
}

const server = createServer(async (request, response) => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const metadata = { issuer, token_endpoint: `${issuer}/token`, grant_types_supported: [GRANT, 'client_credentials'] };
  const answers = {
    '/.well-known/oauth-authorization-server': async () => [200, metadata],
    '/token': () => token(request),
    '/tokens': async () => [200, tokens],
  };
  const [status, body] = await (answers[request.url] ?? (async () => [404, {}]))();
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
});
server.listen(0, '127.0.0.1', () => process.stderr.write(`exchange listening on http://127.0.0.1:${server.address().port}\n`));
