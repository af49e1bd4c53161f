// A person connects an account in a headless Chromium without JavaScript: `connect_page.mjs URL BACKEND ISSUER`. URL is the
// broker's, ISSUER an oidc-provider with its own pages. The person signs in, consents, looks at the connection, ends it, and
// then refuses to consent.
import assert from 'node:assert/strict';

import { peersOf } from './checks.mjs';

const CHROMIUM = '/usr/bin/chromium-headless-shell';
const STEP_MS = 30_000;

const [url, backend, issuer] = process.argv.slice(2);
const { chromium } = peersOf('browser')('playwright-core');
const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
const context = await browser.newContext({ javaScriptEnabled: false });
const page = await context.newPage();
page.setDefaultTimeout(STEP_MS);

const ok = what => console.log(`ok ${what}`);
const press = name => page.getByRole('button', { name }).click();
const title = async wanted => assert.equal(await page.getByRole('heading', { level: 1 }).first().textContent(), wanted);

await page.goto(`${url}/connect/${backend}`);
assert.ok((await page.textContent('body')).includes(issuer), 'the page names the server');
await press('Connect');
assert.ok(page.url().startsWith(`${issuer}/interaction/`), page.url());
await page.getByPlaceholder('Enter any login').fill('ann');
await page.getByPlaceholder('and password').fill('any');
await press('Sign-in');
ok('a person signs in');
await press('Continue');
await title('Connected');
assert.equal(new URL(page.url()).origin, url);
ok('a person consents');

await page.goto(`${url}/connect`);
await page.getByRole('link', { name: `${backend}: connected` }).click();
await press('End the connection');
await title('The connection has ended');
await page.goto(`${url}/connect`);
await page.getByText(`${backend}: not connected`).waitFor();
ok('a person ends the connection');

await context.clearCookies({ name: /^_session/ });
await page.goto(`${url}/connect/${backend}`);
await press('Connect');
await page.getByRole('link', { name: 'Cancel' }).click();
await title('Not connected');
ok('a person refuses');

await page.goto(`${url}/connect/${backend}`);
await press('Connect');
await page.getByPlaceholder('Enter any login').fill('ann');
await page.getByPlaceholder('and password').fill('any');
await press('Sign-in');
await press('Continue');
await title('Connected');
ok('a person connects again');
await browser.close();
