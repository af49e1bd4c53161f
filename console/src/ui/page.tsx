// The frame of a view.
import type { ComponentChildren } from 'preact';
import { useEffect } from 'preact/hooks';

import { LIST_MAX, type List, type Problem } from '../api/client';
import { Failed, Note } from './controls';
import { Icon } from './icons';
import { number, Text } from './text';

interface PageProps {
  title: string;
  lead?: ComponentChildren;
  /** Buttons next to the title. */
  actions?: ComponentChildren;
  back?: { href: string; title: string };
  problem?: Problem | undefined;
  children: ComponentChildren;
}

export function Page({ title, lead, actions, back, problem, children }: PageProps) {
  useEffect(() => {
    document.title = `${title} · mcp-broker`;
  }, [title]);
  return (
    <section class="page" aria-labelledby="title">
      {back && (
        <a class="back" href={back.href}>
          <Icon name="back" />
          {back.title}
        </a>
      )}
      <header>
        <div>
          <h1 id="title" tabIndex={-1}>
            <Text>{title}</Text>
          </h1>
          {lead && <p class="lead">{lead}</p>}
        </div>
        {actions && <div class="actions">{actions}</div>}
      </header>
      <Failed problem={problem} />
      {children}
    </section>
  );
}

export function Toolbar({ children, count }: { children: ComponentChildren; count?: string }) {
  return (
    <div class="toolbar">
      {children}
      {count !== undefined && (
        <span class="count" role="status">
          {count}
        </span>
      )}
    </div>
  );
}

/** Says that a list has more entries than the page shows. */
export function Cut({ list }: { list: List<unknown> | undefined }) {
  return list?.isCut ? <Note>The page shows and searches the first {number(LIST_MAX)} entries. The command line and the admin API have all.</Note> : null;
}

export function Card({ title, children, actions, wide }: { title?: string; children: ComponentChildren; actions?: ComponentChildren; wide?: boolean }) {
  return (
    <section class={`card ${wide ? 'span' : ''}`}>
      {(title || actions) && (
        <header>
          {title && (
            <h2>
              <Text>{title}</Text>
            </h2>
          )}
          {actions}
        </header>
      )}
      {children}
    </section>
  );
}

type Fact = readonly [string, ComponentChildren] | false | '' | null | undefined;

/** Names with their values. Facts that are false are left out. */
export function Facts({ children }: { children: Fact | readonly Fact[] }) {
  return (
    <dl class="facts">
      {(children as readonly Fact[]).map(
        fact =>
          fact && (
            <div key={fact[0]}>
              <dt>{fact[0]}</dt>
              <dd>{fact[1]}</dd>
            </div>
          ),
      )}
    </dl>
  );
}

export function Json({ value, label }: { value: unknown; label: string }) {
  return (
    <pre class="json" tabIndex={0} role="region" aria-label={label}>
      <Text multiline>{typeof value === 'string' ? value : JSON.stringify(value, null, 2)}</Text>
    </pre>
  );
}
