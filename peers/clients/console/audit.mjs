// The audit log in the console: `audit.mjs ORIGIN TOKEN TAMPERED`. The chain of the tenant `acme` was edited at the record TAMPERED, and
// the chain of records without a tenant was not.
import assert from 'node:assert/strict';

import { Person, launch, ok } from './browser.mjs';

const [origin, token, tampered] = process.argv.slice(2);

const browser = await launch();
const person = await Person.sit(browser, origin);
const { page } = person;
const verdict = page.locator('.actions [role="status"]');

async function everyChain() {
  await person.signIn(token);
  await person.open('audit');
  await person.button('Verify').click();
  await verdict.getByText(`record ${tampered} of the chain of tenant acme does not fit`).waitFor();
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
  await verdict.getByText(`record ${tampered} of the chain of tenant acme does not fit`).waitFor();
  ok('every chain is verified');
}

try {
  await everyChain();
  person.check();
} catch (error) {
  console.error(error, (await page.locator('body').innerText()).slice(0, 3_000), person.complaints);
  process.exitCode = 1;
}
await browser.close();
