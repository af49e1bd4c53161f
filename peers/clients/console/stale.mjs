// Nothing outdated, missing or unasked: `stale.mjs ORIGIN TOKEN`. The backend `b` has the tool `hang`, which never answers and takes the
// text `note`. The script answers some requests in the broker's place.
import assert from 'node:assert/strict';

import { Person, launch, ok } from './browser.mjs';

const [origin, token] = process.argv.slice(2);
const browser = await launch();
const person = await Person.sit(browser, origin);
const { page } = person;

function entry(number, process) {
  return {
    number, at: `2026-01-01T00:00:0${number}Z`, tenant: 'default', principal: 'ann', transport: 'http', method: 'tools/call', target: `${process}-${number}`,
    outcome: 'refused', duration_ms: 1, request_id: `${process}-${number}`,
  };
}

/** A replica restarts with its name. Its entries begin with number 1 again. */
async function restartedReplica() {
  let entries = [1, 2, 3].map(number => entry(number, 'before'));
  await page.route(url => url.pathname.endsWith('/admin/v1/activity'), route => {
    const after = Number(new URL(route.request().url()).searchParams.get('after') ?? 0);
    return route.fulfill({ json: { replica: 'broker-1', entries: entries.filter(one => one.number > after) } });
  });
  await person.open('activity');
  await person.row('before-3').waitFor();
  entries = [...entries, entry(4, 'before')];
  await person.row('before-4').waitFor();
  assert.equal(await person.row('before-').count(), 4);
  entries = [entry(1, 'after')];
  await person.row('after-1').waitFor();
  assert.equal(await person.row('before-').count(), 0);
  await page.unrouteAll();
  ok('the activity of a replica that started again');
}

/** Without its schema, a tool is neither judged nor called. */
async function missingDefinition() {
  const isDefinition = url => url.pathname.endsWith('/catalog') && url.searchParams.has('definitions');
  const detail = 'the definitions are away';
  await page.route(isDefinition, route => route.fulfill({ status: 503, contentType: 'application/problem+json', json: { type: 'urn:mcp-broker:problem:away', detail } }));
  await person.open('catalog/default?item=b%2Fhang');
  await page.locator('.pane').getByText(detail).waitFor();
  assert.equal(await page.locator('.pane').getByText('may destroy').count(), 0);
  await person.open('try/default/b__hang');
  await page.getByText(detail).waitFor();
  assert.ok(await person.button('Call the tool').isDisabled(), 'a tool without a schema can be called');
  await page.unrouteAll();
  await person.open('catalog/default?item=b%2Fhang');
  await page.locator('.pane').getByText('may destroy').waitFor();
  ok('a definition that is missing');
}

async function stoppedCall() {
  await person.open('try/default/b__hang');
  await page.getByLabel('note').fill('from the form');
  await person.button('JSON').click();
  const json = page.getByLabel('Arguments as JSON');
  await json.fill('{"note": "by hand"}');
  await person.button('JSON').click();
  assert.equal(await json.inputValue(), '{"note": "by hand"}');
  await person.button('Call the tool').click();
  await page.locator('.wire').getByText('tools/call', { exact: true }).waitFor();
  // The end of the session is the last request of the trial.
  const [ended] = await Promise.all([
    page.waitForResponse(response => response.request().method() === 'DELETE' && new URL(response.url()).pathname.endsWith('/try')),
    person.button('Stop').click(),
  ]);
  await ended.finished();
  await page.evaluate(() => new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve))));
  const answer = page.locator('.card', { has: page.getByRole('heading', { name: 'Answer' }) });
  await answer.getByText('cancelled', { exact: true }).waitFor();
  assert.equal(await answer.getByRole('alert').count(), 0);
  ok('a call that was stopped');
}

try {
  await person.signIn(token);
  for (const part of [restartedReplica, missingDefinition, stoppedCall]) await part();
  person.check();
} catch (error) {
  console.error(error, (await page.locator('body').innerText()).slice(0, 3_000), person.complaints);
  process.exitCode = 1;
}
await browser.close();
