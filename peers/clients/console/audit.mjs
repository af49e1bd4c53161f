// The audit log in the console: `audit.mjs ORIGIN TOKEN TAMPERED`. The chain of the tenant `acme` was edited at the record TAMPERED, and
// the chain of records without a tenant was not. Then the script answers for a log that is longer than the page reads.
import assert from 'node:assert/strict';

import { Person, launch, ok } from './browser.mjs';

const [origin, token, tampered] = process.argv.slice(2);
const RECORDS = 7_000;

const browser = await launch();
const person = await Person.sit(browser, origin);
const { page } = person;
await page.clock.install();
const verdict = page.locator('.actions [role="status"]');

async function everyChain() {
  await person.signIn(token);
  await person.open('audit');
  await person.button('Verify').click();
  await verdict.getByText(`record ${tampered} of the chain of tenant acme does not pass the verification`).waitFor();
  await person.judge('a chain that does not fit');
  await page.getByLabel('Tenant').selectOption('default');
  await person.settled();
  assert.equal(await verdict.count(), 0, 'the result of other chains is still there');
  await person.button('Verify').click();
  await verdict.getByText(/records of default verified$/).waitFor();
  await page.getByLabel('Tenant').selectOption('acme');
  await person.settled();
  assert.equal(await verdict.count(), 0, 'the result of another chain is still there');
  await person.button('Verify').click();
  await verdict.getByText(`record ${tampered} of the chain of tenant acme does not pass the verification`).waitFor();
  ok('every chain is verified');
}

function record(number) {
  return { number, at: '2026-01-01T00:00:00Z', kind: 'admin', principal: 'admin', action: `change ${number}`, outcome: 'ok', request_id: `r${number}`, node: 'n1' };
}

/** The page asks for the newest records, and only when a person does. */
async function newestRecords() {
  const asked = [];
  await page.route(url => url.pathname.endsWith('/admin/v1/audit'), route => {
    const query = new URL(route.request().url()).searchParams;
    asked.push(query);
    const isNewest = query.get('order') === 'newest';
    const numbers = Array.from({ length: RECORDS }, (_, at) => (isNewest ? RECORDS - at : at + 1));
    const begin = query.has('after') ? numbers.indexOf(Number(query.get('after'))) + 1 : 0;
    const records = numbers.slice(begin, begin + Number(query.get('limit'))).map(record);
    const next = begin + records.length < RECORDS ? { next: records.at(-1).number } : {};
    return route.fulfill({ contentType: 'application/json', body: JSON.stringify({ records, ...next }) });
  });
  await person.open('audit?tenant=acme');
  await page.getByLabel('Time').selectOption('Last 7 days');
  await page.getByText('The page shows the newest 5,000 records').waitFor();
  await person.settled();
  await page.getByText(`change ${RECORDS}`, { exact: true }).waitFor();
  await page.getByLabel('Search the audit log').fill('change 2001');
  await person.row('change 2001').waitFor();
  await page.getByLabel('Search the audit log').fill('');
  const before = asked.length;
  await page.clock.runFor(120_000);
  assert.equal(asked.length, before, 'the page asks by itself, and each request is a record');
  const again = page.waitForRequest(request => request.url().includes('order=newest'));
  await person.button('Refresh').click();
  await again;
  ok('the newest records');
}

/** The choice of everything is another one than the choice that a view begins with. */
async function everything() {
  await person.open('audit?tenant=acme');
  const asked = page.waitForRequest(request => request.url().includes('/admin/v1/audit?') && !request.url().includes('since='));
  await page.getByLabel('Time').selectOption('All');
  await asked;
  await page.getByText('change 7000').waitFor();
  assert.equal(await page.getByLabel('Time').inputValue(), 'all');
  await person.open('approvals');
  await page.getByLabel('State').selectOption('Every state');
  await page.getByText('No approval is in this state.').waitFor();
  assert.equal(await page.getByLabel('State').inputValue(), 'all');
  ok('everything');
}

try {
  await everyChain();
  await newestRecords();
  await everything();
  person.check();
} catch (error) {
  console.error(error, (await page.locator('body').innerText()).slice(0, 3_000), person.complaints);
  process.exitCode = 1;
}
await browser.close();
