// Who is signed in, and what that operator may do. The API decides; the page only leaves out what would be refused.
import { computed, signal } from '@preact/signals';

import { call, Problem, problemOf, send, whenSignedOut, type Operation, type Schemas } from './api/client';
import { OPERATIONS } from './api/operations';

export type SignedIn = Schemas['SignedInView'];

/** `undefined`: not known yet. `null`: without sign-in. */
export const operator = signal<SignedIn | null | undefined>(undefined);
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

/** Asks who is signed in. */
export async function resume(): Promise<void> {
  try {
    const who = await call<SignedIn>('GET /admin/v1/operator');
    // Forms take the tenant once, so the tenants are known before a view is shown.
    await loadTenants(who);
    operator.value = who;
  } catch (error) {
    if (error instanceof Problem && error.status !== 401) loginNote.value = error.message;
    operator.value = null;
  }
}

export async function signIn(token: string): Promise<void> {
  const response = await send('POST', 'console/login', { body: { token } });
  if (!response.ok) throw await problemOf(response);
  loginNote.value = '';
  await resume();
}

export async function signOut(): Promise<void> {
  const response = await send('POST', 'console/logout');
  operator.value = null;
  if (response.status === 200) {
    // The issuer ends its own session, and leads back here.
    location.assign(((await response.json()) as { url: string }).url);
    return;
  }
  loginNote.value = response.ok ? '' : `${(await problemOf(response)).message} The login may still be valid at the broker.`;
  await resume(); // a listener without a token stays open
}

whenSignedOut(() => {
  if (!operator.value) return;
  loginNote.value = 'Your login has ended. Sign in again.';
  operator.value = null;
});
