// An operator signs in at an authorization server, and out again at both: `issuer.mjs ORIGIN ISSUER NAME`. Then a stranger sends the browser an answer of that
// server which belongs to another login.
import assert from 'node:assert/strict';

import { Person, launch, ok } from './browser.mjs';

const [origin, issuer, name] = process.argv.slice(2);
const browser = await launch();
// The pages of the server ask for a font.
const person = await Person.sit(browser, origin, { alsoAt: [issuer, 'https://fonts.googleapis.com'] });
const { page } = person;
const answers = [];
page.on('request', request => {
  if (new URL(request.url()).pathname === '/console/callback') answers.push(request.url());
});

try {
  await page.goto(`${origin}/console/`);
  await page.getByRole('button', { name: `Sign in at ${new URL(issuer).host}` }).waitFor();
  await person.judge('login with an issuer');
  const signIn = () => page.getByRole('button', { name: `Sign in at ${new URL(issuer).host}` }).click();
  const asWho = page.getByPlaceholder('Enter any login');
  await signIn();
  await asWho.fill('ann');
  await page.getByPlaceholder('and password').fill('any');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await page.getByRole('button', { name: 'Continue' }).click();
  await person.heading('Overview').waitFor();
  await page.getByText(name, { exact: true }).waitFor();
  await page.getByText('auditor', { exact: true }).waitFor();
  assert.equal(await page.getByRole('link', { name: 'Try it' }).count(), 0);
  ok('signed in at the issuer');

  const cookies = await page.context().cookies();
  assert.deepEqual(cookies.filter(cookie => cookie.name.includes('begun')), []);
  const login = cookies.find(cookie => cookie.name === 'mcp-broker');
  assert.ok(login.httpOnly && login.sameSite === 'Strict' && !login.value.includes('.'), 'the token is sealed');
  const cookie = `${login.name}=${login.value}`;
  const pageKey = await page.evaluate(() => localStorage.getItem('page-key'));
  const who = async (key = pageKey) => (await fetch(`${origin}/admin/v1/operator`, { headers: { cookie, 'mcp-broker-console': key } })).status;
  assert.equal(await who(), 200);
  assert.equal(await who('x'.repeat(64)), 401, 'another port of the host gets the cookie, and not the key');
  await person.button('Sign out').click();
  await page.getByRole('button', { name: 'Yes, sign me out' }).waitFor();
  const asked = new URL(page.url()).searchParams;
  assert.deepEqual([asked.get('client_id'), asked.get('post_logout_redirect_uri')], ['login', `${origin}/console/`]);
  assert.match(asked.get('id_token_hint'), /^[\w-]+\.[\w-]+\.[\w-]+$/);
  assert.equal(await who(), 401, 'the broker ended the login already');
  await page.getByRole('button', { name: 'Yes, sign me out' }).click();
  await page.getByLabel('Operator token').waitFor();
  assert.equal(new URL(page.url()).origin, origin, 'the issuer led back to the console');
  ok('signed out at the broker');
  await signIn();
  await asWho.waitFor();
  ok('signed out at the issuer');

  for (const answer of [answers[0], `${origin}/console/callback?code=x&state=y`, `${origin}/console/callback`]) {
    await page.goto(answer);
    await page.getByText('The login at the issuer did not succeed.').waitFor();
    assert.equal((await page.context().cookies()).filter(cookie => cookie.name === 'mcp-broker').length, 0);
  }
  ok('an answer to another login counts for nothing');
  person.check();
} catch (error) {
  console.error(error, await page.locator('body').innerText(), person.complaints);
  process.exitCode = 1;
}
await browser.close();
