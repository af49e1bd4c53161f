// A headless Chromium at the console. Every page is watched: it may talk to its own origin only, break no rule of its policy, and
// log no error.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

import { peersOf } from '../checks.mjs';

const CHROMIUM = '/usr/bin/chromium-headless-shell';
const STEP_MS = 30_000;
const RULES = { type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] };
/** The rules whose verdict depends on the theme. */
export const COLOURS = { type: 'rule', values: ['color-contrast', 'link-in-text-block'] };

const require = peersOf('browser');
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

export const ok = what => console.log(`ok ${what}`);

export async function launch() {
  return chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
}

/** A person at the console, in a browser context of its own. */
export class Person {
  /** Problems that the page had, in words. */
  complaints = [];

  static async sit(browser, origin, { dark = false, width = 1240, height = 780, alsoAt = [] } = {}) {
    const context = await browser.newContext({
      viewport: { width, height },
      colorScheme: dark ? 'dark' : 'light',
      reducedMotion: 'reduce',
      timezoneId: 'UTC',
      locale: 'en-GB',
    });
    await context.grantPermissions(['clipboard-read', 'clipboard-write']);
    await context.addInitScript(() => {
      document.addEventListener('securitypolicyviolation', event => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
    });
    const page = await context.newPage();
    page.setDefaultTimeout(STEP_MS);
    const person = new Person(page, origin);
    person.origins = [origin, ...alsoAt];
    person.watch();
    return person;
  }

  constructor(page, origin) {
    this.page = page;
    this.origin = origin;
  }

  watch() {
    const { page } = this;
    page.on('pageerror', error => this.complaints.push(`error: ${error.message}`));
    page.on('console', message => {
      // Chromium logs every refused request; what the page makes of it is tested.
      if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) this.complaints.push(message.text());
    });
    page.on('request', request => {
      const url = new URL(request.url());
      if (url.protocol !== 'blob:' && !this.origins.includes(url.origin)) this.complaints.push(`request to ${url.origin}`);
    });
  }

  async signIn(token) {
    await this.page.goto(`${this.origin}/console/`);
    await this.page.getByLabel('Operator token').fill(token);
    await this.page.getByRole('button', { name: 'Sign in' }).click();
    await this.page.locator('nav.side').waitFor({ state: 'attached' });
  }

  /** Opens a view by its address. */
  async open(address) {
    await this.page.evaluate(hash => {
      location.hash = hash;
    }, `#/${address}`);
    await this.settled();
  }

  /** Waits until the view has what it asked for. */
  async settled() {
    await this.page.locator('h1').waitFor();
    await this.page.locator('.loading').waitFor({ state: 'detached' });
  }

  heading(name) {
    return this.page.getByRole('heading', { level: 1, name });
  }

  button(name) {
    return this.page.getByRole('button', { name, exact: true });
  }

  row(text) {
    return this.page.getByRole('row').filter({ hasText: text });
  }

  /** Judges what the page shows now by the rules of WCAG 2.2 AA, or by some of them. */
  async judge(what, rules = RULES) {
    if (!(await this.page.evaluate(() => 'axe' in globalThis))) await this.page.evaluate(axe);
    const violations = await this.page.evaluate(async rules => {
      const found = await globalThis.axe.run(document, { runOnly: rules, resultTypes: ['violations'] });
      return found.violations.map(one => `${one.id}: ${one.nodes.map(node => `${node.target} ${node.failureSummary}`).join(' | ')}`);
    }, rules);
    assert.deepEqual(violations, [], what);
    const wider = await this.page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wider <= 0, `${what} is ${wider} pixels wider than the screen`);
  }

  /** Fails if a page complained. */
  check() {
    assert.deepEqual(this.complaints, []);
  }

  async leave() {
    await this.page.context().close();
  }
}
