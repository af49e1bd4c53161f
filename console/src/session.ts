// Who is signed in, and what that operator may do. The API decides; the page only leaves out what would be refused.
import { batch, computed, signal } from '@preact/signals';

import { asProblem, call, jsonFrom, problemOf, send, whenSignedOut, type Operation, type Problem, type Schemas } from './api/client';
import { OPERATIONS } from './api/operations';

export type SignedIn = Schemas['SignedInView'];

/** `undefined`: not known yet. `null`: without sign-in. */
export const operator = signal<SignedIn | null | undefined>(undefined);
/** The login has ended while a view was open. The view stays, with what was entered, below a sign-in. */
export const hasEnded = signal(false);
/** Why the page does not know yet who is signed in. */
export const startProblem = signal<Problem>();
export const loginNote = signal('');
const permissions = computed(() => new Set<string>(operator.value?.permissions ?? []));

/** Returns whether the operator may use an operation. */
export function may(operation: Operation): boolean {
  return permissions.value.has(OPERATIONS[operation]);
}

export const tenants = signal<string[]>([]);
/** The tenant whose entries are shown. Empty: all that the operator sees. */
export const tenant = signal(localStorage.getItem('tenant') ?? '');

export function chooseTenant(name: string): void {
  tenant.value = name;
  localStorage.setItem('tenant', name);
}

/** The tenant for views that show one: the chosen one, or the first. */
export const oneTenant = computed(() => (tenants.value.includes(tenant.value) ? tenant.value : (tenants.value[0] ?? '')));

async function loadTenants(who: SignedIn): Promise<void> {
  if (who.permissions.includes(OPERATIONS['GET /admin/v1/tenants'])) {
    const list = await call<Schemas['TenantList']>('GET /admin/v1/tenants');
    tenants.value = list.tenants.map(one => one.tenant);
  } else {
    const names = who.tenants ?? who.backends?.map(name => name.split('/')[0] ?? '') ?? [];
    tenants.value = [...new Set(names)];
  }
  if (tenant.value && !tenants.value.includes(tenant.value)) chooseTenant('');
}

/** Reads the tenants again: other operators add and remove some. */
export async function refreshTenants(): Promise<void> {
  if (operator.value) await loadTenants(operator.value);
}

/** Asks who is signed in. */
async function load(): Promise<void> {
  const before = operator.peek();
  const who = await call<SignedIn>('GET /admin/v1/operator');
  // Forms take the tenant once, so the tenants are known before a view is shown.
  await loadTenants(who);
  // The operator may have signed out meanwhile.
  if (operator.peek() !== before) return;
  batch(() => {
    operator.value = who;
    hasEnded.value = false;
    startProblem.value = undefined;
  });
}

/** Begins, or begins again: shows the sign-in without a login, and a problem without an answer. */
export async function start(): Promise<void> {
  try {
    await load();
  } catch (error) {
    const problem = asProblem(error);
    // A broker that is away says nothing about the login.
    if (operator.value === undefined && (problem.status === 0 || problem.status >= 500)) {
      startProblem.value = problem;
      return;
    }
    if (problem.status !== 401) loginNote.value = problem.message;
    operator.value = null;
  }
}

export async function signIn(token: string): Promise<void> {
  const response = await send('POST', 'console/login', { body: { token } });
  if (!response.ok) throw await problemOf(response);
  await load();
  loginNote.value = '';
}

export async function signOut(): Promise<void> {
  const response = await send('POST', 'console/logout');
  operator.value = null;
  if (response.status === 200) {
    // The issuer ends its own session, and leads back here.
    location.assign((await jsonFrom<{ url: string }>(response)).url);
    return;
  }
  loginNote.value = response.ok ? '' : `${(await problemOf(response)).message} The login may still be valid at the broker.`;
  await start(); // a listener without a token stays open
}

whenSignedOut(() => {
  if (!operator.value || hasEnded.value) return;
  loginNote.value = 'Your login has ended. Sign in again.';
  hasEnded.value = true;
});

// Another tab may have signed in again, or as another operator.
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible' && operator.value) void load().catch(() => undefined);
});
