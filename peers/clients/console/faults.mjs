// What goes wrong at a console: `faults.mjs ORIGIN TOKEN`. The backend `b` has the tools `read` and `send` and a prompt with an invisible
// character, all held by pins. The script refuses or loses some requests in the broker's place.
import assert from 'node:assert/strict';

import { Person, launch, ok } from './browser.mjs';

const [origin, token] = process.argv.slice(2);
const browser = await launch();
const person = await Person.sit(browser, origin);
const { page } = person;
const at = path => url => url.pathname.endsWith(path);
const AWAY = { status: 503, contentType: 'application/problem+json', json: { type: 'urn:mcp-broker:problem:away', detail: 'it is away' } };
const PAGE_OF_PROXY = { status: 502, contentType: 'text/html', body: '<html>nothing here</html>' };

/** Sends a request to the admin API, without the browser. */
async function admin(method, path, body) {
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
  const response = await fetch(`${origin}/admin/v1/${path}`, { method, headers, body: body && JSON.stringify(body) });
  assert.ok(response.ok, `${method} ${path}: ${response.status}`);
  return response.status === 204 ? undefined : response.json();
}

const pins = async () => (await admin('GET', 'tenants/default/backends/b/pins')).pins;
const region = name => page.getByRole('region', { name, exact: true });
const card = title => page.locator('.card', { has: page.getByRole('heading', { level: 2, name: title, exact: true }) });
const stat = name => page.locator('.stat', { hasText: name });

/** What the operator was shown is approved, and nothing else. */
async function approvesWhatWasShown() {
  const list = at('/backends/b/pins');
  const stale = `v1:${'0'.repeat(64)}`;
  await page.route(list, async route => {
    const response = await route.fetch();
    const body = await response.json();
    // The definition of `send` changed after the page got this list.
    for (const pin of body.pins) if (pin.name === 'send') pin.hash = stale;
    await route.fulfill({ response, json: body });
  });
  await person.open('backends/default/b');
  await person.button('Approve all').click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('region', { name: 'Definitions to approve' }).getByText('send').waitFor();
  await person.judge('an approval of several pins');
  await dialog.getByRole('button', { name: 'Approve all' }).click();
  await dialog.getByRole('alert').getByText('Nothing is approved.').waitFor();
  assert.ok((await pins()).every(pin => pin.state !== 'trusted'), 'a definition that was not shown is approved');
  await dialog.getByRole('button', { name: 'Keep' }).click();
  await page.unrouteAll();
  await page.reload();
  await person.button('Approve all').click();
  const sent = page.waitForRequest(request => request.method() === 'POST' && at('/pins/approve')(new URL(request.url())));
  await dialog.getByRole('button', { name: 'Approve all' }).click();
  const { items, ...others } = (await sent).postDataJSON();
  assert.deepEqual(others, {});
  await page.getByText(`${items.length} definitions are trusted.`).waitFor();
  const trusted = (await pins()).filter(pin => pin.state === 'trusted').map(({ kind, name, hash }) => `${kind} ${name} ${hash}`);
  assert.deepEqual(items.map(({ kind, name, hash }) => `${kind} ${name} ${hash}`).sort(), trusted.sort());
  ok('an approval of what was shown');
}

/** A refusal in a dialog is read out there, and what is told shows invisible characters. */
async function refusedDecisions() {
  const block = at('/pins/block');
  await page.route(block, route => route.fulfill(AWAY));
  await region('Pins').getByRole('button', { name: 'ask' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'Block' }).click();
  await dialog.getByRole('alert').getByText('it is away').waitFor();
  await page.unroute(block);
  await dialog.getByRole('button', { name: 'Block' }).click();
  await page.locator('.told .unseen', { hasText: 'U+200B' }).waitFor();

  const approval = state => ({
    id: 'a1', tenant: 'default', principal: 'ann', backend: 'b', tool: 'send', state, rule: 'pay', arguments_hash: `sha256:${'0'.repeat(64)}`, arguments: {}, four_eyes: false,
    tool_changed: false, created_at: '2026-01-01T00:00:00Z', expires_at: '2026-01-01T00:10:00Z', ...(state === 'denied' ? { decided_by: 'zoe' } : {}),
  });
  let state = 'pending';
  await page.route(at('/approvals'), route => route.fulfill({ json: { approvals: [approval('pending')] } }));
  await page.route(at('/approvals/a1'), route => {
    if (route.request().method() === 'GET') return route.fulfill({ json: approval(state) });
    state = 'denied';
    return route.fulfill({ ...AWAY, status: 409, json: { type: 'urn:mcp-broker:problem:decided', detail: 'approval a1 is denied already, decided by zoe' } });
  });
  await person.open('approvals');
  await page.getByRole('button', { name: 'b/send' }).click();
  await dialog.getByRole('button', { name: 'Approve' }).click();
  await dialog.getByRole('alert').getByText('denied already').waitFor();
  await dialog.getByText('zoe', { exact: true }).waitFor();
  assert.equal(await dialog.getByRole('button', { name: 'Approve' }).count(), 0);
  assert.ok(await dialog.getByRole('alert').getByText('denied already').isVisible());
  await page.keyboard.press('Escape');
  await page.unrouteAll();
  ok('refused decisions');
}

/** Every part of the overview that is not known says so in its place. */
async function partsOfTheOverview() {
  for (const path of ['/nodes', '/activity', '/configuration']) await page.route(at(path), route => route.fulfill(AWAY));
  const troubled = Array.from({ length: 20 }, (_, number) => ({ tenant: 'default', backend: `down-${number}`, state: 'failed' }));
  await page.route(at('/overview'), async route => {
    const response = await route.fetch({ headers: { ...route.request().headers(), 'if-none-match': '' } });
    const { waiting: _waiting, ...rest } = await response.json();
    await route.fulfill({ response, json: { ...rest, troubled } });
  });
  await person.open('overview');
  await card('Replicas').getByText('The replicas are unknown:').waitFor();
  await card('Recent refusals and errors').getByText('unknown:').waitFor();
  await page.getByText('The state of the configuration file is unknown:').waitFor();
  for (const name of ['Waiting approvals', 'Broken connections']) await stat(name).getByText('unknown').waitFor();
  await card('Needs attention').getByText('These are the first 20.').waitFor();
  await person.judge('an overview with unknown parts');
  await page.unrouteAll();
  await card('Replicas').getByText('answers this page').waitFor();
  await page.route(at('/nodes'), route => route.fulfill(AWAY));
  await card('Replicas').getByText('Not current:').waitFor();
  await card('Replicas').getByText('answers this page').waitFor();
  await page.unrouteAll();
  await card('Replicas').getByText('Not current:').waitFor({ state: 'detached' });

  const { token: owned } = await admin('POST', 'operators', { name: 'otto', role: 'backend_owner', backends: ['default/b'] });
  const owner = await Person.sit(browser, origin);
  await owner.signIn(owned);
  await owner.page.getByText('Backends ready').waitFor();
  // The overview counts these for whole tenants only, so an owner of backends would see a zero.
  for (const name of ['Waiting approvals', 'Sessions']) assert.equal(await owner.page.locator('.stat', { hasText: name }).count(), 0, name);
  owner.check();
  await owner.leave();
  ok('unknown parts of the overview');
}

/** Answers that are not the broker's, or that say nothing. */
async function strangeAnswers() {
  await page.route(at('/admin/v1/sessions'), route => route.fulfill(PAGE_OF_PROXY));
  await person.open('sessions');
  await page.getByText('The answer (502 Bad Gateway) is not from the broker.').waitFor();
  await page.unrouteAll();
  await page.route(at('/admin/v1/sessions'), route => route.fulfill({ ...PAGE_OF_PROXY, status: 200 }));
  await page.getByText('The answer (200 OK) is not from the broker.').waitFor();
  await page.unrouteAll();

  for (const [error, advice] of [
    ['could not connect: dns error: failed to lookup address information', 'does not resolve'],
    ['the upgrade to websocket was refused with status 401', 'refuses the credential'],
    ['command "npx" not found (or the interpreter it names)', 'The program does not start'],
    ['could not connect: connection refused', 'Nothing listens'],
  ]) {
    await page.route(at('/default/backends/b'), async route => {
      const response = await route.fetch();
      await route.fulfill({ response, json: { ...(await response.json()), state: 'failed', last_error: error } });
    });
    await person.open('overview');
    await person.open('backends/default/b');
    await page.locator('.advice').getByText(advice).waitFor();
    await page.unrouteAll();
  }

  await person.open('policy/gone');
  await page.getByText('tenant gone does not exist').waitFor();
  assert.equal(await page.getByText('everything is allowed').count(), 0);
  await person.open('catalog/gone');
  await page.getByText('tenant gone does not exist').waitFor();

  const isCall = url => at('/try')(url);
  await page.route(isCall, route => {
    const isOne = route.request().method() === 'POST' && route.request().postDataJSON().method === 'tools/call';
    return isOne ? route.fulfill({ contentType: 'text/event-stream', body: '' }) : route.fallback();
  });
  await person.open('try/default/b__send');
  await person.button('Call the tool').click();
  await card('Answer').getByText('may have had its effect').waitFor();
  await card('Answer').getByText('failed', { exact: true }).waitFor();
  await page.unrouteAll();

  // A stream that breaks off after its first event, and continues when it is opened again.
  await page.evaluate(() => {
    const send = globalThis.fetch;
    globalThis.restoreFetch = () => (globalThis.fetch = send);
    const stream = (text, end) => {
      const start = controller => controller.enqueue(new TextEncoder().encode(text));
      return new Response(new ReadableStream({ start, pull: end }), { headers: { 'content-type': 'text/event-stream' } });
    };
    let id;
    globalThis.fetch = async (url, init) => {
      if (!new URL(url).pathname.endsWith('/try')) return send(url, init);
      if (init.method === 'GET' && init.headers['last-event-id'] === '7') {
        const answer = { jsonrpc: '2.0', id, result: { content: [{ type: 'text', text: 'it continues' }] } };
        return stream(`data: ${JSON.stringify(answer)}\n\n`, controller => controller.close());
      }
      const message = init.method === 'POST' ? JSON.parse(init.body) : {};
      if (message.method !== 'tools/call') return send(url, init);
      ({ id } = message);
      const note = { jsonrpc: '2.0', method: 'notifications/message', params: {} };
      return stream(`id: 7\ndata: ${JSON.stringify(note)}\n\n`, controller => new Promise(() => (globalThis.breakOff = () => controller.error(new TypeError('network error')))));
    };
  });
  await person.button('Call the tool').click();
  await page.locator('.wire').getByText('notifications/message', { exact: true }).waitFor();
  await page.evaluate(() => globalThis.breakOff());
  await card('Answer').getByText('it continues').waitFor();
  await page.evaluate(() => globalThis.restoreFetch());
  ok('strange answers');
}

/** An operator that the broker cannot read is in the list, with the reason. */
async function unreadableOperator() {
  const fault = 'the broker cannot read the stored settings (unknown field `toolsets`), refuses the token, and removes no tenant';
  const ann = { id: 'o1', name: 'ann', role: 'unreadable', tenants: [], source: 'api', created_at: '2026-01-01T00:00:00Z', fault };
  await page.route(at('/admin/v1/operators'), route => route.fulfill({ json: { operators: [ann] } }));
  await person.open('operators');
  await page.locator('.note.bad').getByText(`ann: ${fault}`).waitFor();
  await person.row('ann').getByText('unreadable', { exact: true }).waitFor();
  await person.row('ann').getByText('–', { exact: true }).waitFor();
  await person.judge('an operator that the broker cannot read');
  await page.unrouteAll();
  ok('an operator that the broker cannot read');
}

/** A form is sent once, and after a removal the focus is in the view. */
async function oneKey() {
  await person.open('keys');
  let posts = 0;
  let release = () => undefined;
  const released = new Promise(resolve => (release = resolve));
  await page.route(at('/default/keys'), async route => {
    if (route.request().method() === 'POST') {
      posts++;
      await released;
    }
    await route.fallback();
  });
  await person.button('Create a key').click();
  const dialog = page.getByRole('dialog');
  await page.getByLabel('Name').fill('only one');
  await dialog.getByRole('button', { name: 'Create the key' }).dblclick();
  release();
  await person.button('Done').click();
  await page.unrouteAll();
  assert.equal(posts, 1);
  const { keys } = await admin('GET', 'tenants/default/keys');
  assert.equal(keys.filter(key => key.name === 'only one').length, 1);
  await person.button('Revoke key only one').focus();
  await page.keyboard.press('Enter');
  await person.button('Revoke the key').focus();
  await page.keyboard.press('Enter');
  await dialog.waitFor({ state: 'detached' });
  assert.equal(await page.evaluate(() => document.activeElement?.id), 'main');

  await person.button('Create a key').click();
  await page.getByLabel('Expires in').fill('soon');
  await page.keyboard.press('Enter');
  await page.locator('.field.faulty', { hasText: 'Expires in' }).waitFor();
  await page.waitForFunction(() => document.activeElement?.getAttribute('aria-invalid') === 'true');
  await page.keyboard.press('Escape');
  ok('a form that is sent once');
}

/** The login ends in the middle of an edit. */
async function endedLogin() {
  const draft = '{"rules": [], "tests": []}';
  await person.open('policy/default');
  await person.button('Write a policy').click();
  await page.getByRole('textbox', { name: 'Policy' }).fill(draft);
  await page.context().clearCookies();
  const refused = [];
  const note = response => response.status() === 401 && refused.push(response.url());
  page.on('response', note);
  await person.button('Put into force').click();
  const cover = page.getByRole('dialog', { name: 'Sign in again' });
  await cover.getByText('Your login has ended. Sign in again.').waitFor();
  await person.judge('a login that has ended');
  await page.keyboard.press('Escape');
  await page.keyboard.press('Escape');
  await cover.getByLabel('Operator token').fill(token);
  const seen = refused.length;
  await cover.getByRole('button', { name: 'Sign in' }).click();
  await cover.waitFor({ state: 'detached' });
  // A request that was under way when the login ended is the only other one.
  assert.ok(seen <= 2, `the page asks without a login: ${refused}`);
  page.off('response', note);
  assert.equal(await page.getByRole('textbox', { name: 'Policy' }).inputValue(), draft);
  await person.button('Put into force').click();
  await page.getByText('The policy is in force.').waitFor();
  // A change by another operator appears, and does not pass for the version that is being edited.
  await person.button('Edit').click();
  const rule = { id: 'of-another', effect: 'deny', objects: { tools: ['b/send'] } };
  const read = page.waitForResponse(async response => at('/default/policy')(new URL(response.url())) && (await response.text()).includes('of-another'));
  await admin('PUT', 'tenants/default/policy', { rules: [rule] });
  await read;
  await person.button('Put into force').click();
  await page.getByRole('alert').getByText('does not match If-Match').waitFor();
  await person.button('Cancel').click();
  await person.row('of-another').waitFor();

  // A sign-in in another tab counts here, too.
  await person.button('Edit').click();
  await page.getByRole('textbox', { name: 'Policy' }).fill(draft);
  await page.context().clearCookies();
  await person.button('Put into force').click();
  await cover.getByRole('link', { name: 'open the console in a new tab' }).waitFor();
  const tab = new Person(await page.context().newPage(), origin);
  await tab.signIn(token);
  await tab.page.close();
  await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
  await cover.waitFor({ state: 'detached' });
  assert.equal(await page.getByRole('textbox', { name: 'Policy' }).inputValue(), draft);
  await person.button('Cancel').click();

  const { token: other } = await admin('POST', 'operators', { name: 'vera', role: 'tenant_admin' });
  await person.button('Edit').click();
  await page.context().clearCookies();
  await person.button('Put into force').click();
  await cover.getByLabel('Operator token').fill(other);
  await cover.getByRole('button', { name: 'Sign in' }).click();
  await page.locator('.who').getByText('vera').waitFor();
  await person.button('Edit').waitFor();
  assert.equal(await page.getByRole('textbox', { name: 'Policy' }).count(), 0, 'another operator has the draft');
  ok('a login that ends during an edit');
}

/** A broker that does not answer says nothing about the login, and its values grow old. */
async function silentBroker() {
  await page.route(at('/admin/v1/operator'), route => route.abort());
  await page.reload();
  await page.getByText('The broker does not answer.').waitFor();
  assert.equal(await page.getByLabel('Operator token').count(), 0);
  await person.judge('a broker that does not answer');
  await page.unrouteAll();
  await person.button('Try again').click();
  await person.heading('Policy').waitFor();
  await admin('PUT', 'tenants/new', {});
  await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
  await person.open('keys');
  await page.getByLabel('Tenant', { exact: true }).selectOption('new');
  await page.getByText('Tenant new has no keys.').waitFor();

  const late = await Person.sit(browser, origin);
  await late.page.clock.install();
  await late.page.route(at('/console/logins'), route => route.fulfill(AWAY));
  await late.page.goto(`${origin}/console/`);
  await late.page.getByText('Logins at issuers are unknown:').waitFor();
  await late.page.unrouteAll();
  // Two realms of one server have one host.
  const issuers = ['a', 'b'].map(realm => `https://idp.example/realms/${realm}`);
  await late.page.route(at('/console/logins'), route => route.fulfill({ json: { issuers } }));
  await late.button('Try again').click();
  for (const realm of ['a', 'b']) await late.button(`Sign in at idp.example/realms/${realm}`).waitFor();
  await late.page.unrouteAll();
  await late.signIn(token);
  await late.page.getByText('Backends ready').waitFor();
  const [asked] = await Promise.all([
    late.page.waitForRequest(request => at('/admin/v1/overview')(new URL(request.url()))),
    late.page.route(at('/admin/v1/overview'), () => undefined).then(() => late.page.clock.fastForward(5_000)),
  ]);
  assert.ok(asked);
  await late.page.clock.fastForward(31_000);
  const old = late.page.locator('.page > .note.bad');
  await old.getByText('The broker has not answered within 30 s.').waitFor();
  await old.getByText('Not current:').waitFor();
  await late.page.getByText('Backends ready').waitFor();
  await late.leave();
  ok('a broker that does not answer');
}

try {
  await person.signIn(token);
  for (const part of [approvesWhatWasShown, refusedDecisions, partsOfTheOverview, strangeAnswers, unreadableOperator, oneKey, endedLogin, silentBroker]) await part();
  person.check();
} catch (error) {
  console.error(error, (await page.locator('body').innerText()).slice(0, 3_000), person.complaints);
  process.exitCode = 1;
}
await browser.close();
