// The frame around every view: name, navigation, operator.
import { signal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';

import type { Operation } from '../api/client';
import { useLive } from '../live';
import { href, route } from '../router';
import { may, operator, refreshTenants, signOut } from '../session';
import { Button, Told } from './controls';
import { Icon, type IconName } from './icons';
import { Text } from './text';

export interface Entry {
  view: string;
  title: string;
  icon: IconName;
  /** Without this operation the view is left out. */
  needs: Operation;
}

export const GROUPS: readonly (readonly [string, readonly Entry[]])[] = [
  [
    'Broker',
    [
      { view: 'overview', title: 'Overview', icon: 'overview', needs: 'GET /admin/v1/overview' },
      { view: 'backends', title: 'Backends', icon: 'backends', needs: 'GET /admin/v1/backends' },
      { view: 'catalog', title: 'Catalog', icon: 'catalog', needs: 'GET /admin/v1/tenants/{tenant}/catalog' },
      { view: 'toolsets', title: 'Toolsets', icon: 'toolsets', needs: 'GET /admin/v1/tenants/{tenant}/toolsets' },
      { view: 'try', title: 'Try it', icon: 'try', needs: 'POST /admin/v1/tenants/{tenant}/try' },
    ],
  ],
  [
    'Traffic',
    [
      { view: 'approvals', title: 'Approvals', icon: 'approvals', needs: 'GET /admin/v1/tenants/{tenant}/approvals' },
      { view: 'activity', title: 'Activity', icon: 'activity', needs: 'GET /admin/v1/activity' },
      { view: 'sessions', title: 'Sessions', icon: 'sessions', needs: 'GET /admin/v1/sessions' },
      { view: 'tasks', title: 'Tasks', icon: 'tasks', needs: 'GET /admin/v1/tasks' },
    ],
  ],
  [
    'Access',
    [
      { view: 'policy', title: 'Policy', icon: 'policy', needs: 'GET /admin/v1/tenants/{tenant}/policy' },
      { view: 'keys', title: 'Keys', icon: 'keys', needs: 'GET /admin/v1/tenants/{tenant}/keys' },
      { view: 'connections', title: 'Connections', icon: 'connections', needs: 'GET /admin/v1/tenants/{tenant}/connections' },
      { view: 'operators', title: 'Operators', icon: 'operators', needs: 'GET /admin/v1/operators' },
      { view: 'audit', title: 'Audit', icon: 'audit', needs: 'GET /admin/v1/audit' },
    ],
  ],
  ['Clients', [{ view: 'setup', title: 'Client setup', icon: 'setup', needs: 'GET /admin/v1/backends' }]],
];

const open = signal(false);
type Theme = 'light' | 'dark';
const theme = signal<Theme | null>(localStorage.getItem('theme') as Theme | null);

function applyTheme(): void {
  if (theme.value) document.documentElement.dataset['theme'] = theme.value;
}
applyTheme();

function isDark(): boolean {
  return theme.value ? theme.value === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
}

function switchTheme(): void {
  theme.value = isDark() ? 'light' : 'dark';
  localStorage.setItem('theme', theme.value);
  applyTheme();
}

export function Brand() {
  return (
    <>
      <svg viewBox="0 0 32 32" aria-hidden="true">
        <rect width="32" height="32" rx="8" fill="#3450c4" />
        <path d="M9 9.500 16 16M9 22.500 16 16M23 16h-7" fill="none" stroke="#fff" stroke-width="2.4" stroke-linecap="round" />
        <g fill="#fff">
          <circle cx="8.500" cy="9" r="2.600" />
          <circle cx="8.500" cy="23" r="2.600" />
          <circle cx="24" cy="16" r="2.600" />
          <circle cx="16" cy="16" r="3.600" />
        </g>
      </svg>
      mcp-broker
    </>
  );
}

export function ThemeButton() {
  const dark = isDark();
  return (
    <Button kind="quiet" icon={dark ? 'sun' : 'moon'} label={dark ? 'Light theme' : 'Dark theme'} run={switchTheme}>
      {null}
    </Button>
  );
}

export function Shell({ children }: { children: ComponentChildren }) {
  const { view } = route.value;
  const main = useRef<HTMLElement>(null);
  const path = [view, ...route.value.rest].join('/');
  const before = useRef(path);
  // A new view begins at its top, and is where the keyboard goes on.
  useEffect(() => {
    if (before.current === path) return;
    before.current = path;
    open.value = false;
    main.current?.scrollTo(0, 0);
    main.current?.focus();
  }, [path]);
  useLive(refreshTenants, [], 30_000);
  const who = operator.value;
  return (
    <div class="frame">
      <a
        class="skip"
        href="#main"
        onClick={event => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to the content
      </a>
      <header class="top">
        <span class="menu">
          <Button kind="quiet" icon="menu" label="Menu" expanded={open.value} run={() => (open.value = !open.value)}>
            {null}
          </Button>
        </span>
        <a class="brand" href={href('overview')}>
          <Brand />
        </a>
        <span class="space" />
        <ThemeButton />
        <div class="who">
          <strong>
            <Text>{who?.name ?? ''}</Text>
          </strong>
          <span>{who?.role.replace('_', ' ')}</span>
        </div>
        <Button kind="quiet" icon="out" label="Sign out" run={signOut}>
          {null}
        </Button>
      </header>
      <nav class={`side ${open.value ? 'open' : ''}`} aria-label="Views">
        {GROUPS.map(([title, entries]) => {
          const seen = entries.filter(entry => may(entry.needs));
          if (!seen.length) return null;
          return (
            <div key={title}>
              <h2>{title}</h2>
              <ul>
                {seen.map(entry => (
                  <li key={entry.view}>
                    <a href={href(entry.view)} aria-current={view === entry.view ? 'page' : undefined}>
                      <Icon name={entry.icon} />
                      {entry.title}
                    </a>
                  </li>
                ))}
              </ul>
            </div>
          );
        })}
      </nav>
      <main ref={main} id="main" tabIndex={-1}>
        {children}
      </main>
      <Told />
    </div>
  );
}
