// The day of an operator, from an empty broker to a tool that its people use: `day.mjs ORIGIN TOKEN NODE SERVER MCP BANK [IMAGES]`.
// The backend is the program NODE with the script SERVER, which is `server-everything`. MCP is the endpoint of the broker for clients.
// BANK is the URL of a second backend, which counts the calls of its tool `send`, and changes that tool once a call to zoe waits.
import assert from 'node:assert/strict';
import { join } from 'node:path';

import { Agent } from './agent.mjs';
import { Person, launch, ok } from './browser.mjs';

const [origin, token, node, server, mcp, bank, images] = process.argv.slice(2);
const browser = await launch();
const person = await Person.sit(browser, origin);
const { page } = person;
let [key, agent, olga, paul] = [];
const answer = page.locator('.card', { has: page.getByRole('heading', { name: 'Answer' }) });

async function firstBackend() {
  await person.signIn(token);
  await page.getByText('No backend is registered yet.').waitFor();
  await page.getByRole('link', { name: 'Add a backend' }).click();
  await person.heading('Add a backend').waitFor();
  await page.getByLabel('Name (required)').fill('Not a name');
  await page.getByLabel('URL').fill('http://10.1.2.3/mcp');
  await person.button('Add and connect').click();
  await page.locator('.field.faulty', { hasText: 'Name' }).waitFor();
  await page.getByLabel('Name (required)').fill('everything');
  await person.button('Add and connect').click();
  // The broker's own words, at the field at fault.
  const fault = page.locator('.field.faulty', { hasText: 'URL' });
  await fault.getByText('refused address').waitFor();
  await person.judge('a form with faults');
  await page.getByLabel('Transport').selectOption('stdio');
  await page.getByLabel('Command (required)').fill(node);
  await page.getByLabel('Arguments').fill(`${server}\nstdio`);
  await page.getByLabel('Environment').fill('SECRET=canary-of-the-day');
  await person.button('Add and connect').click();
  await person.heading('everything').waitFor();
  await page.getByText('mcp-servers/everything').waitFor();
  await person.button('Test the connection').click();
  await page.getByText('everything answers.').waitFor();
  assert.ok(!(await page.content()).includes('canary-of-the-day'), 'a secret is on the page');
  ok('the first backend');
}

async function editBackend() {
  await page.getByRole('link', { name: 'Edit' }).click();
  await person.heading('Edit everything').waitFor();
  await person.button('Store and reconnect').click();
  // The masked value of the environment must not replace the real one.
  await page.getByText('enter it again').waitFor();
  await page.getByLabel('Environment').fill('');
  await person.button('Store and reconnect').click();
  await person.heading('everything').waitFor();
  ok('a changed backend');
}

async function tryTool() {
  await page.getByRole('link', { name: 'Show in the catalog' }).click();
  await page.getByLabel('Search the catalog').fill('echo');
  await page.getByRole('link', { name: 'everything__echo' }).click();
  await page.getByText('Echoes back the input string').first().waitFor();
  await page.locator('.pane').getByRole('link', { name: 'Try it' }).click();
  await page.getByLabel('message').fill('hello from the console');
  await person.button('Call the tool').click();
  await answer.getByText('Echo: hello from the console').waitFor();
  await answer.getByText('ok', { exact: true }).waitFor();
  const trace = await answer.locator('dd').last().innerText();
  assert.match(trace, /^[0-9a-f]{32}$/);
  await page.locator('.wire').getByText('tools/call', { exact: true }).waitFor();
  await person.judge('an answer');
  if (images) {
    await page.locator('.told p').waitFor({ state: 'detached' });
    await page.screenshot({ path: join(images, 'console-try.png') });
  }
  ok('a tried tool');
}

async function answerQuestion() {
  await person.open('try/default/everything__trigger-elicitation-request');
  await person.button('Call the tool').click();
  const question = page.locator('.question');
  await question.waitFor();
  await person.judge('a question');
  await question.getByLabel('String', { exact: true }).fill('Ada');
  await question.getByLabel('Boolean').selectOption('true');
  await question.getByLabel('Integer').fill('many');
  await question.getByRole('button', { name: 'Answer' }).click();
  await question.getByText('is not a whole number').waitFor();
  await question.getByLabel('Integer').fill('42');
  await question.getByRole('button', { name: 'Answer' }).click();
  await question.waitFor({ state: 'detached' });
  await answer.getByText('Ada').first().waitFor();
  ok('an answered question');
}

async function watchProgress() {
  await person.open('try/default/everything__trigger-long-running-operation');
  await page.getByLabel('duration').fill('2');
  await page.getByLabel('steps').fill('4');
  await person.button('Call the tool').click();
  await page.locator('.wire').getByText('notifications/progress', { exact: true }).first().waitFor();
  await answer.getByText('Long running operation completed').waitFor();
  ok('progress');
}

async function policyInForce() {
  await person.open('policy');
  await person.button('Write a policy').click();
  const rule = { id: 'no-env', effect: 'deny', subjects: { groups: ['guests'] }, objects: { tools: ['everything/get-env'] } };
  const test = { as: { groups: ['guests'] }, method: 'tools/call', object: 'everything/get-env', expect: 'allow' };
  await page.getByRole('textbox', { name: 'Policy' }).fill(JSON.stringify({ rules: [rule], tests: [test] }));
  await person.button('Put into force').click();
  await page.getByText('A test of the policy fails').waitFor();
  await page.getByRole('textbox', { name: 'Policy' }).fill(JSON.stringify({ rules: [rule], tests: [{ ...test, expect: 'deny' }] }));
  await person.button('Put into force').click();
  await person.row('no-env').first().waitFor();
  await page.getByLabel('Groups').fill('guests');
  await page.getByLabel('Object').fill('everything/get-env');
  await person.button('Check').click();
  await page.getByText('no-env: applied').waitFor();
  await page.getByLabel('Object').fill('elsewhere/get-env');
  await person.button('Check').click();
  await page.getByText('no backend elsewhere is registered in the tenant default.').waitFor();
  await person.open('try/default/everything__get-env');
  await page.getByLabel('Call as').selectOption({ label: 'another subject…' });
  await page.getByLabel('Principal').fill('gus');
  await page.getByLabel('Groups').fill('guests');
  await person.button('Call the tool').click();
  await answer.getByText('refused', { exact: true }).waitFor();
  await person.open('activity');
  await person.row('operator admin as gus').first().waitFor();
  await person.row('deny: no-env').first().waitFor();
  ok('a policy in force');
}

async function keyShownOnce() {
  await person.open('keys');
  await person.button('Create a key').click();
  await page.getByLabel('Name').fill('build server');
  await page.getByLabel('Expires in').fill('soon');
  await page.getByRole('dialog').getByRole('button', { name: 'Create the key' }).click();
  await page.locator('.field.faulty', { hasText: 'Expires in' }).waitFor();
  await page.getByLabel('Expires in').fill('720h');
  await page.getByRole('dialog').getByRole('button', { name: 'Create the key' }).click();
  const key = await page.locator('.secret').innerText();
  assert.match(key, /^mcpb_/);
  await page.getByRole('dialog').getByRole('button', { name: 'Copy' }).click();
  await page.getByText('Copied').waitFor();
  await person.button('Done').click();
  await person.row('build server').waitFor();
  assert.ok(!(await page.content()).includes(key), 'the key is still on the page');
  await person.button('Revoke key build server').click();
  await person.button('Revoke the key').click();
  await page.getByText('Tenant default has no keys.').waitFor();
  ok('a key, shown once');
}

/** A backend in quarantine: its tools are held until an operator looked at them. */
async function heldTool() {
  await person.open('backends/+');
  await page.getByLabel('Name (required)').fill('bank');
  await page.getByLabel('URL').fill(bank);
  await page.locator('summary', { hasText: 'Further settings' }).click();
  await page.getByRole('textbox', { name: 'Further settings' }).fill('{"pins": "hold_all"}');
  await person.button('Add and connect').click();
  await person.heading('bank').waitFor();
  await createKey('assistant', 'olga');
  agent = await Agent.connected(mcp, key);
  assert.ok(!(await agent.tools()).includes('bank__send'), 'a held tool is listed');
  assert.equal((await agent.call('bank__send', { to: 'ann' })).error.data.kind, 'tool_held');
  await person.open('overview');
  const held = page.locator('.stat', { hasText: 'Held by pins' });
  await held.locator('.value', { hasText: '2' }).waitFor();
  await page.getByRole('region', { name: 'Waiting for a person' }).getByRole('link', { name: 'held at bank' }).click();
  await person.heading('bank').waitFor();
  await acceptPin();
  assert.ok((await agent.tools()).includes('bank__send'), 'the approved tool is listed');
  assert.ok(!(await agent.tools()).includes('bank__read'), 'the other one is held still');
  ok('a held tool, approved');
}

/** Approves the tool `send` of the backend that is shown. */
async function acceptPin() {
  await page.getByRole('region', { name: 'Pins' }).getByRole('button', { name: 'send' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByText('Definition as it is now').click();
  await dialog.getByRole('region', { name: 'Definition' }).getByText('send').first().waitFor();
  await person.judge('a pin');
  await dialog.getByRole('button', { name: 'Approve' }).click();
  await page.getByText('send is trusted.').waitFor();
  await person.row('send').getByText('trusted').waitFor();
}

async function createKey(name, principal) {
  await person.open('keys');
  await person.button('Create a key').click();
  await page.getByLabel('Name').fill(name);
  await page.getByLabel('Principal').fill(principal);
  await page.getByRole('dialog').getByRole('button', { name: 'Create the key' }).click();
  key = await page.locator('.secret').innerText();
  await person.button('Done').click();
}

/** Creates an operator, who sits down at a console of their own. */
async function colleague(name) {
  await person.open('operators');
  await person.button('Create an operator').click();
  await page.getByLabel('Name (required)').fill(name);
  await page.getByLabel('Role').selectOption('operator');
  await page.getByRole('dialog').getByRole('button', { name: 'Create the operator' }).click();
  const made = await Person.sit(browser, origin);
  await made.signIn(await page.locator('.secret').innerText());
  await person.button('Done').click();
  return made;
}

/** Opens the only call that waits. */
async function lookAtCall(at, args) {
  await at.open('approvals');
  await at.page.getByRole('button', { name: 'bank/send' }).click();
  const dialog = at.page.getByRole('dialog');
  await dialog.getByRole('region', { name: 'Arguments' }).getByText(JSON.stringify(args)).waitFor();
  return dialog;
}

async function approvedCall() {
  await person.open('policy');
  await person.button('Edit').click();
  const rule = { id: 'pay', effect: 'approve', objects: { tools: ['bank/send'] }, ttl: '10m', reason: 'money leaves the house' };
  await page.getByRole('textbox', { name: 'Policy' }).fill(JSON.stringify({ rules: [rule] }));
  await person.button('Put into force').click();
  await person.row('pay').waitFor();
  olga = await colleague('olga');
  paul = await colleague('paul');
  const call = agent.call('bank__send', { to: 'ann' });
  await person.open('overview');
  await page.locator('.stat', { hasText: 'Waiting approvals' }).locator('.value', { hasText: '1' }).waitFor();
  // Four eyes: the agent has a key of olga, so she cannot approve its call.
  const own = await lookAtCall(olga, { to: 'ann' });
  await own.getByText('money leaves the house').waitFor();
  await olga.judge('a call that waits');
  await own.getByRole('button', { name: 'Approve' }).click();
  await own.getByText('decision of another person than the caller').waitFor();
  const dialog = await lookAtCall(paul, { to: 'ann' });
  await dialog.getByRole('button', { name: 'Approve' }).click();
  await paul.page.getByText('The call is approved.').waitFor();
  const { result } = await call;
  assert.deepEqual([result.isError ?? false, result.content[0].text], [false, 'sent ann']);
  await paul.open('approvals?state=used');
  await paul.row('bank/send').getByText('used').waitFor();
  ok('a call that another person approved');
}

async function deniedCall() {
  const call = agent.call('bank__send', { to: 'mallory' });
  const dialog = await lookAtCall(paul, { to: 'mallory' });
  await dialog.getByLabel('Reason').fill('not to this one');
  await dialog.getByRole('button', { name: 'Deny' }).click();
  await paul.page.getByText('The call is denied.').waitFor();
  const { result } = await call;
  assert.ok(result.isError && result.content[0].text.includes('not to this one'), JSON.stringify(result));
  ok('a call that a person denied');
}

/** The bank changes the tool while the call waits. */
async function changedTool() {
  const call = agent.call('bank__send', { to: 'zoe' });
  const dialog = await lookAtCall(paul, { to: 'zoe' });
  await dialog.getByText('This call will not be executed.').waitFor();
  await paul.judge('a call whose tool changed');
  await dialog.getByRole('button', { name: 'Approve' }).click();
  // The pin holds the tool, which counts before the approval.
  assert.equal((await call).error?.data.kind, 'tool_held');
  await person.open('backends/default/bank');
  await person.row('send').getByText('changed').waitFor();
  await acceptPin();
  olga.check();
  paul.check();
  await olga.leave();
  await paul.leave();
  ok('a call whose tool changed');
}

async function breakerHeld() {
  await person.open('backends/default/everything');
  await person.button('Hold the breaker open').click();
  await person.button('Hold it open').click();
  await person.button('Release the breaker').waitFor();
  await person.open('overview');
  await page.getByRole('region', { name: 'Backends that need attention' }).getByText('everything').waitFor();
  await person.open('backends/default/everything');
  await person.button('Release the breaker').click();
  await person.button('Hold the breaker open').waitFor();
  ok('a held breaker');
}

async function auditTrail() {
  await person.open('audit?kind=admin');
  await person.row('PUT /admin/v1/tenants/{tenant}/policy').first().getByRole('button').click();
  await page.getByRole('dialog').getByRole('heading', { name: 'After' }).waitFor();
  await page.getByRole('dialog').getByText('no-env').first().waitFor();
  await person.judge('a record');
  await page.keyboard.press('Escape');
  await page.getByLabel('Search the audit log').fill('sign_in');
  await person.row('sign_in').first().waitFor();
  await person.button('Verify').click();
  await page.getByText(/records in \d+ chains verified$/).waitFor();
  const [download] = await Promise.all([page.waitForEvent('download'), person.button('Export').click()]);
  assert.equal(download.suggestedFilename(), 'audit.jsonl');
  ok('the audit log');
}

async function signedOut() {
  await person.button('Sign out').click();
  await page.getByLabel('Operator token').waitFor();
  await page.goBack();
  await page.getByLabel('Operator token').waitFor();
  await page.getByLabel('Operator token').fill('mcpo_wrong');
  await person.button('Sign in').click();
  await page.getByText('this is neither the admin token').waitFor();
  await person.judge('a refused login');
  ok('signed out');
}

try {
  const parts = [firstBackend, editBackend, tryTool, answerQuestion, watchProgress, policyInForce, keyShownOnce, heldTool, approvedCall, deniedCall, changedTool, breakerHeld, auditTrail, signedOut];
  for (const part of parts) await part();
  person.check();
} catch (error) {
  console.error(error, await page.locator('body').innerText(), person.complaints);
  process.exitCode = 1;
}
await browser.close();
