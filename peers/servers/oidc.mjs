// An authorization server for tests: `oidc-provider` (a certified OpenID Provider) on a free port of
// 127.0.0.1, with everything in memory. Prints `oidc listening on URL` on standard error; URL is the
// issuer. Run it with the pinned node; NODE_MODULES names the folder of oidc-provider.
//
//   NODE_MODULES=$P/node/node_modules $P/node/node_modules/.bin/node peers/servers/oidc.mjs [OPTION…]
//
// Options:
//   --groups JSON           groups of users and of clients: {"ann": ["dev"], "machine": ["robots"]};
//                           they are the claim `groups` of every access token
//   --scopes "a b"          scopes of every resource; default "mcp:read mcp:write"
//   --audience TEXT         audience of tokens that were requested without `resource`
//   --token-ttl SECONDS     life of an access token; default 3600
//   --login-token-ttl SECONDS  life of the access token of a login, which a refresh follows
//   --rotate                each refresh token works once, also those of confidential clients
//   --pages                 a person signs in and consents on pages of the server
//   --redirect-uri URI      registers the public client `login` for this URI (may be repeated)
//   --logout-uri URI        where the server leads the browser of the client `login` after a logout
//   --client-jwks JSON      public keys of the client `broker-key` (private_key_jwt)
//   --no-registration       no dynamic client registration (RFC 7591)
//   --client-id-documents   client ID metadata documents as clients
//   --refuse-resource       answers 400 to every `resource` parameter, as Entra does
//   --no-iss                neither announces nor sends `iss` (RFC 9207)
//   --hide-pkce             does not announce the methods of PKCE, as Entra does
//
// GET /counts answers with the numbers of `refreshed`, `refused` and `revoked` grants.
//
// Clients (secret: `secret-of-` and the client's id; client_secret_basic if nothing else is said):
//   machine, machine-opaque  client_credentials; access tokens as JWT, or opaque
//   machine-bound            client_credentials; tokens bound to the certificate of the request,
//                            PEM in percent-encoding in the header `x-client-certificate`
//   login, login-opaque      public, authorization_code with PKCE and refresh_token
//   broker, broker-post, broker-key  may ask the introspection endpoint: by client_secret_basic,
//                            client_secret_post, private_key_jwt; the last two also have
//                            client_credentials
//
// No person is needed: the server signs in the user that `login_hint` names (or `ann`), grants what
// was asked, and answers an authorization request with the redirect to the client. So one GET
// without a browser or cookies gives the code.

import { generateKeyPairSync, X509Certificate } from 'node:crypto';
import { createServer } from 'node:http';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const modules = process.env.NODE_MODULES ?? new URL('../node_modules', import.meta.url).pathname;
const { Provider } = await import(pathToFileURL(`${modules}/oidc-provider/lib/index.js`).href);

const { values: options } = parseArgs({
  options: {
    groups: { type: 'string', default: '{}' },
    scopes: { type: 'string', default: 'mcp:read mcp:write' },
    audience: { type: 'string' },
    'token-ttl': { type: 'string', default: '3600' },
    'login-token-ttl': { type: 'string' },
    rotate: { type: 'boolean', default: false },
    pages: { type: 'boolean', default: false },
    'redirect-uri': { type: 'string', multiple: true, default: [] },
    'logout-uri': { type: 'string', multiple: true, default: [] },
    'client-jwks': { type: 'string' },
    'no-registration': { type: 'boolean', default: false },
    'client-id-documents': { type: 'boolean', default: false },
    'refuse-resource': { type: 'boolean', default: false },
    'no-iss': { type: 'boolean', default: false },
    'hide-pkce': { type: 'boolean', default: false },
  },
});
const groups = JSON.parse(options.groups);
const lifetime = Number(options['token-ttl']);
const loginLifetime = Number(options['login-token-ttl'] ?? lifetime);
const counts = { refreshed: 0, refused: 0, revoked: 0 };

// Marks the server's own steps through an authorization request, which no client takes.
const OWN_STEP = 'x-own-step';
const WITHOUT_RESOURCE = 'urn:peer:no-resource';

function confidential(id, more = {}) {
  return { client_id: id, client_secret: `secret-of-${id}`, redirect_uris: [], response_types: [], grant_types: [], ...more };
}
function publicClient(id) {
  const redirect_uris = options['redirect-uri'];
  const grant_types = ['authorization_code', 'refresh_token'];
  const post_logout_redirect_uris = options['logout-uri'];
  return { client_id: id, redirect_uris, post_logout_redirect_uris, grant_types, token_endpoint_auth_method: 'none', application_type: 'native' };
}
const machine = { grant_types: ['client_credentials'] };
const clients = [
  confidential('machine', machine),
  confidential('machine-opaque', machine),
  confidential('machine-bound', { ...machine, tls_client_certificate_bound_access_tokens: true }),
  confidential('broker'),
  confidential('broker-post', { ...machine, token_endpoint_auth_method: 'client_secret_post' }),
];
if (options['redirect-uri'].length > 0) clients.push(publicClient('login'), publicClient('login-opaque'));
if (options['client-jwks']) {
  const { client_secret, ...client } = confidential('broker-key', { ...machine, token_endpoint_auth_method: 'private_key_jwt' });
  clients.push({ ...client, jwks: JSON.parse(options['client-jwks']) });
}

const configuration = {
  clients,
  jwks: { keys: [{ ...generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' }), use: 'sig', kid: 'one' }] },
  cookies: { keys: ['a key of tests that is not a secret at all'] },
  scopes: ['openid', 'offline_access', ...options.scopes.split(' ')],
  claims: { openid: ['sub', 'groups'] },
  ttl: { AccessToken: (ctx) => (ctx.oidc.params.grant_type === 'authorization_code' ? loginLifetime : lifetime), ClientCredentials: lifetime, Grant: 86400, Session: 86400, Interaction: 600 },
  async findAccount(ctx, id) {
    return { accountId: id, claims: async () => ({ sub: id, groups: groups[id] ?? [] }) };
  },
  async extraTokenClaims(ctx, token) {
    return { groups: groups[token.accountId ?? token.clientId] ?? [] };
  },
  ...(options.pages ? {} : { interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` } }),
  ...(options.rotate ? { rotateRefreshToken: true } : {}),
  // A refresh token whatever the scopes, as most providers for companies are set up.
  issueRefreshToken: async (ctx, client) => client.grantTypeAllowed('refresh_token'),
  features: {
    devInteractions: { enabled: options.pages },
    clientCredentials: { enabled: true },
    introspection: { enabled: true, allowedPolicy: (ctx, client) => client.clientId.startsWith('broker') },
    revocation: { enabled: true },
    registration: { enabled: !options['no-registration'] },
    clientIdMetadataDocument: { enabled: options['client-id-documents'], ack: 'draft-02' },
    mTLS: {
      enabled: true,
      certificateBoundAccessTokens: true,
      getCertificate(ctx) {
        const pem = ctx.get('x-client-certificate');
        return pem ? new X509Certificate(decodeURIComponent(pem)) : undefined;
      },
    },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => (options.audience ? WITHOUT_RESOURCE : undefined),
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, resource, client) => ({
        scope: options.scopes,
        audience: resource === WITHOUT_RESOURCE ? options.audience : resource,
        accessTokenFormat: client.clientId.endsWith('-opaque') ? 'opaque' : 'jwt',
      }),
    },
  },
};

// Signs in and grants at once: what a person would do in a browser.
async function grantAll(provider, ctx) {
  const { params } = await provider.interactionDetails(ctx.req, ctx.res);
  const accountId = params.login_hint ?? 'ann';
  const grant = new provider.Grant({ accountId, clientId: params.client_id });
  grant.addOIDCScope(`openid offline_access ${options.scopes}`);
  for (const resource of [params.resource ?? []].flat()) grant.addResourceScope(resource, options.scopes);
  const result = { login: { accountId }, consent: { grantId: await grant.save() } };
  await provider.interactionFinished(ctx.req, ctx.res, result, { mergeWithLastSubmission: false });
  ctx.respond = false;
}

// Follows an authorization request, cookies included, until it leads away from this server.
async function finalRedirect(issuer, start) {
  const cookies = new Map();
  let place = new URL(start, issuer);
  for (let steps = 0; steps < 10; steps += 1) {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const answer = await fetch(place, { redirect: 'manual', headers: { cookie, [OWN_STEP]: '1' } });
    for (const line of answer.headers.getSetCookie()) {
      const [name, value] = line.split(';')[0].split('=');
      cookies.set(name, value);
    }
    const next = answer.headers.get('location');
    if (next === null) return { status: answer.status, body: await answer.text() };
    place = new URL(next, place);
    if (place.origin !== issuer) return { location: place.href };
  }
  throw new Error(`${start} redirects in a circle`);
}

async function whole(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, configuration);
  provider.use(async (ctx, next) => {
    if (ctx.path === '/counts') return Object.assign(ctx, { body: counts });
    if (ctx.path.startsWith('/interaction/') && !options.pages) return grantAll(provider, ctx);
    if (options['refuse-resource'] && (ctx.path === '/auth' || ctx.path === '/token')) {
      if (ctx.method === 'POST') ctx.req.body = Object.fromEntries(new URLSearchParams(await whole(ctx.req)));
      if (ctx.query.resource !== undefined || ctx.req.body?.resource !== undefined) {
        ctx.status = 400;
        ctx.body = { error: 'invalid_target', error_description: 'AADSTS9010010: The resource parameter is not supported' };
        return undefined;
      }
    }
    if (ctx.path === '/auth' && ctx.method === 'GET' && !options.pages && !ctx.get(OWN_STEP)) {
      const { location, status, body } = await finalRedirect(issuer, ctx.url);
      if (location === undefined) return Object.assign(ctx, { status, body });
      const target = new URL(location);
      if (options['no-iss']) target.searchParams.delete('iss');
      return ctx.redirect(target.href);
    }
    await next();
    if (ctx.path.startsWith('/.well-known/') && typeof ctx.body === 'object') {
      if (options['no-iss']) delete ctx.body.authorization_response_iss_parameter_supported;
      if (options['hide-pkce']) delete ctx.body.code_challenge_methods_supported;
    }
    return undefined;
  });
  provider.on('grant.success', (ctx) => {
    if (ctx.oidc.params.grant_type === 'refresh_token') counts.refreshed += 1;
  });
  provider.on('grant.error', () => (counts.refused += 1));
  provider.on('grant.revoked', () => (counts.revoked += 1));
  provider.on('server_error', (ctx, error) => process.stderr.write(`${error.stack}\n`));
  server.on('request', provider.callback());
  process.stderr.write(`oidc listening on ${issuer}\n`);
});
