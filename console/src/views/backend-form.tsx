// Adds a backend, or changes the settings of one. What the broker finds wrong is shown at its field.
import { useEffect, useState } from 'preact/hooks';

import { callTagged, Problem, type Schemas } from '../api/client';
import { asProblem } from '../live';
import { href, route } from '../router';
import { oneTenant, tenants } from '../session';
import { Button, Input, Loading, Note, Refused, Select, State, tell, useSubmit } from '../ui/controls';
import { Card, Page } from '../ui/page';
import { Text } from '../ui/text';
import { showBackend } from './backends';

type View = Schemas['BackendView'];
type Settings = Record<string, unknown>;

const KINDS = [
  ['http', 'Streamable HTTP'],
  ['stdio', 'Program on the broker’s host (stdio)'],
  ['sse', 'HTTP+SSE of 2024-11-05'],
  ['websocket', 'WebSocket'],
  ['tcp', 'TCP'],
  ['quic', 'QUIC'],
] as const;
type Kind = (typeof KINDS)[number][0];

/** The broker shows secrets as this, and would store it as it is. */
const MASK = '***';
const COMMON = ['transport', 'credentials', 'links'];

/** Returns the stored credentials about which a body says nothing, and which it would remove. */
function lost(credentials: View['settings']['credentials'], kind: Kind, body: Settings): { field: string; detail: string }[] {
  // Other transports have no request headers to send them in.
  if (kind !== 'http' && kind !== 'sse' && kind !== 'websocket') return [];
  const given = (body['credentials'] ?? {}) as Settings;
  const faults = [];
  if (credentials?.bearer && given['bearer'] === undefined) {
    faults.push({ field: 'credentials.bearer', detail: 'is stored and not shown; enter it again, or set credentials.bearer to null in the further settings to remove it' });
  }
  if (credentials?.headers.length && given['headers'] === undefined) {
    faults.push({ field: 'credentials.headers', detail: `has ${credentials.headers.join(', ')}, stored and not shown; enter credentials.headers again in the further settings, or {} to remove them` });
  }
  return faults;
}

/** A backend that the broker has, as this form read or stored it. */
interface Stored {
  owner: string;
  name: string;
  tag: string | null;
}

interface Draft {
  owner: string;
  name: string;
  kind: Kind;
  url: string;
  address: string;
  command: string;
  args: string;
  env: string;
  cwd: string;
  bearer: string;
  links: string;
  more: string;
}

/** Returns whether a text is one line of a text area, which changes every line break to `\n`. */
function isLine(text: string): boolean {
  return text !== '' && !/[\r\n]/.test(text);
}

function draftOf(owner: string, name: string, settings?: Settings): Draft {
  const transport = (settings?.['transport'] ?? {}) as Record<string, unknown>;
  const text = (member: string) => String(transport[member] ?? '');
  const rest = Object.fromEntries(Object.entries(settings ?? {}).filter(([member]) => !COMMON.includes(member)));
  const args = (transport['args'] as string[]) ?? [];
  const env = Object.entries((transport['env'] as Record<string, string>) ?? {});
  // What lines cannot hold stays JSON, in the further settings.
  const areLines = { args: args.every(isLine), env: env.every(([variable, value]) => isLine(variable) && !variable.includes('=') && (!value || isLine(value))) };
  const known = ['type', 'url', 'address', 'command', 'cwd', ...(areLines.args ? ['args'] : []), ...(areLines.env ? ['env'] : [])];
  const further = Object.fromEntries(Object.entries(transport).filter(([member]) => !known.includes(member)));
  if (Object.keys(further).length) rest['transport'] = further;
  return {
    owner,
    name,
    kind: (transport['type'] as Kind) ?? 'http',
    url: text('url'),
    address: text('address'),
    command: text('command'),
    args: areLines.args ? args.join('\n') : '',
    env: areLines.env ? env.map(pair => pair.join('=')).join('\n') : '',
    cwd: text('cwd'),
    bearer: '',
    links: String(settings?.['links'] ?? 'auto'),
    more: Object.keys(rest).length ? JSON.stringify(rest, null, 2) : '',
  };
}

function lines(text: string): string[] {
  return text.split('\n').filter(Boolean);
}

function refused(...faults: { field: string; detail: string }[]): Problem {
  return new Problem(0, 'page', 'A field is not accepted.', faults);
}

/** Reads lines of the form NAME=value. */
function environment(text: string): Record<string, string> {
  const variables = new Map<string, string>();
  for (const [at, line] of text.split('\n').entries()) {
    if (!line) continue;
    const end = line.indexOf('=');
    const variable = line.slice(0, end);
    if (end < 1) throw refused({ field: 'transport.env', detail: `line ${at + 1} is not NAME=value` });
    if (variables.has(variable)) throw refused({ field: 'transport.env', detail: `line ${at + 1} repeats ${variable}` });
    variables.set(variable, line.slice(end + 1));
  }
  return Object.fromEntries(variables);
}

function bodyOf(draft: Draft): Settings {
  let more: Settings;
  try {
    more = draft.more.trim() ? JSON.parse(draft.more) : {};
  } catch (error) {
    throw refused({ field: 'more', detail: `is not JSON: ${(error as Error).message}` });
  }
  const further = more['transport'] as Settings | undefined;
  for (const member of ['args', 'env'] as const) {
    if (draft.kind === 'stdio' && draft[member] && further?.[member] !== undefined) {
      throw refused({ field: `transport.${member}`, detail: `is also in the further settings, as transport.${member}: remove one of them` });
    }
  }
  const transport: Settings = { ...further, type: draft.kind };
  if (draft.kind === 'stdio') {
    transport['command'] = draft.command;
    if (draft.args) transport['args'] = lines(draft.args);
    if (draft.env) transport['env'] = environment(draft.env);
    if (draft.cwd) transport['cwd'] = draft.cwd;
  } else if (draft.kind === 'tcp' || draft.kind === 'quic') transport['address'] = draft.address;
  else transport['url'] = draft.url;
  const body: Settings = { ...more, transport };
  if (draft.links !== 'auto') body['links'] = draft.links;
  if (draft.bearer) body['credentials'] = { ...(more['credentials'] as Settings), bearer: draft.bearer };
  return body;
}

/** Returns the members of a body that still hold a mask instead of a value. */
function masked(value: unknown, path = ''): string[] {
  if (typeof value === 'string') return value.includes(MASK) ? [path] : [];
  if (value === null || typeof value !== 'object') return [];
  return Object.entries(value).flatMap(([member, inner]) => masked(inner, path ? `${path}.${member}` : member));
}

export function BackendForm({ owner, name }: { owner?: string; name?: string }) {
  const [draft, setDraft] = useState<Draft | undefined>(name ? undefined : draftOf(route.value.query.get('tenant') ?? oneTenant.value, ''));
  const [stored, setStored] = useState<Stored>();
  const [hidden, setHidden] = useState<string[]>([]);
  const [credentials, setCredentials] = useState<View['settings']['credentials']>();
  const [unread, setUnread] = useState<Problem>();
  const [made, setMade] = useState<View>();
  const { problem, isSending, submit } = useSubmit(async () => {
    if (!draft) return;
    setMade(undefined);
    const body = bodyOf(draft);
    const masks = masked(body).map(field => ({ field, detail: `holds ${MASK} instead of a value that is not shown; enter it again` }));
    const unsaid = [...masks, ...lost(credentials, draft.kind, body)];
    if (unsaid.length) throw refused(...unsaid);
    const known = stored?.owner === draft.owner && stored.name === draft.name ? stored : undefined;
    const headers: Record<string, string> = !known ? { 'if-none-match': '*' } : known.tag ? { 'if-match': known.tag } : {};
    const params = { tenant: draft.owner, backend: draft.name };
    const { value: view, tag } = await callTagged<View>('PUT /admin/v1/tenants/{tenant}/backends/{backend}', { params, body, headers });
    setStored({ owner: draft.owner, name: draft.name, tag });
    if (view.state === 'ready') {
      tell(`${draft.name} is ready, with ${view.tools} tools.`);
      showBackend(draft.owner, draft.name);
    } else setMade(view);
  });

  useEffect(() => {
    if (!owner || !name) return;
    callTagged<View>('GET /admin/v1/tenants/{tenant}/backends/{backend}', { params: { tenant: owner, backend: name } }).then(
      ({ value, tag: found }) => {
        const { credentials } = value.settings;
        const unshown = [...(credentials?.bearer ? ['the bearer token'] : []), ...(credentials?.headers ?? []).map(header => `the header ${header}`)];
        setHidden([...unshown, ...masked(value.settings)]);
        setCredentials(credentials);
        setStored({ owner, name, tag: found });
        setDraft(draftOf(owner, name, value.settings as unknown as Settings));
      },
      error => setUnread(asProblem(error)),
    );
  }, [owner, name]);

  const title = name ? `Edit ${name}` : 'Add a backend';
  const back = name && owner ? { href: href('backends', [owner, name]), title: name } : { href: href('backends'), title: 'Backends' };
  if (!draft) return <Page title={title} back={back} problem={unread}>{unread ? null : <Loading />}</Page>;

  const set = (member: keyof Draft) => (value: string) => setDraft({ ...draft, [member]: value });
  const fault = (...fields: string[]) => fields.map(field => problem?.of(field)).find(Boolean);
  const fields = ['tenant', 'backend', 'transport.url', 'transport.address', 'transport.command', 'transport.args', 'transport.env', 'transport.cwd', 'transport.type', 'credentials.bearer', 'links', 'more'];
  return (
    <Page title={title} back={back} lead="The broker stores the settings and connects at once.">
      <Card>
        <form onSubmit={submit}>
          {hidden.length > 0 && (
            <Note tone="warn">Stored, and not shown: {hidden.join(', ')}. The new settings replace all of the old ones, so enter these again.</Note>
          )}
          <div class="pair">
            <Select label="Tenant" value={draft.owner} set={set('owner')} options={(name ? [draft.owner] : tenants.value).map(one => [one, one] as const)} fault={fault('tenant')} />
            <Input label="Name" value={draft.name} set={name ? () => {} : set('name')} required placeholder="files" fault={fault('backend')} hint="Small letters, digits and hyphens. Tools are called NAME__TOOL." />
          </div>
          <Select label="Transport" value={draft.kind} set={set('kind')} options={KINDS} fault={fault('transport.type')} />
          {draft.kind === 'stdio' ? (
            <>
              <Input label="Command" value={draft.command} set={set('command')} required code placeholder="npx" fault={fault('transport.command')} />
              <div class="pair">
                <Input label="Arguments" value={draft.args} set={set('args')} lines={4} code hint="One per line. Empty arguments and those with line breaks are JSON in the further settings: transport.args." fault={fault('transport.args')} />
                <Input label="Environment" value={draft.env} set={set('env')} lines={4} code hint="NAME=value, one per line. Values are stored encrypted." fault={fault('transport.env')} />
              </div>
              <Input label="Working folder" value={draft.cwd} set={set('cwd')} code fault={fault('transport.cwd')} />
            </>
          ) : draft.kind === 'tcp' || draft.kind === 'quic' ? (
            <Input label="Address" value={draft.address} set={set('address')} required code placeholder="mcp.example.com:7000" fault={fault('transport.address')} />
          ) : (
            <Input label="URL" value={draft.url} set={set('url')} required code placeholder={draft.kind === 'websocket' ? 'wss://mcp.example.com/ws' : 'https://mcp.example.com/mcp'} fault={fault('transport.url')} />
          )}
          <div class="pair">
            {draft.kind !== 'stdio' && (
              <Input label="Bearer token" type="password" value={draft.bearer} set={set('bearer')} code fault={fault('credentials.bearer')} hint="Sent with every request. Stored encrypted, never shown." />
            )}
            <Select
              label="Links"
              value={draft.links}
              set={set('links')}
              options={[['auto', 'as the server allows (auto)'], ['shared', 'one for the whole tenant (shared)'], ['per-session', 'one for each session']]}
              fault={fault('links')}
            />
          </div>
          <details open={Boolean(draft.more)}>
            <summary>Further settings</summary>
            <Input label="Further settings" value={draft.more} set={set('more')} lines={8} code fault={fault('more')} hint="JSON with members such as timeouts, breaker, limits, auth, tools and resources, as the admin API takes them." />
          </details>
          <Refused problem={problem} except={fields} />
          {made && (
            <Note tone="warn">
              <p>
                The backend is stored, and it is <State>{made.state}</State>
              </p>
              {made.last_error && <Text>{made.last_error}</Text>}
            </Note>
          )}
          <div class="actions">
            <a class="button" href={back.href}>
              Cancel
            </a>
            {made && <Button run={() => showBackend(draft.owner, draft.name)}>Show it</Button>}
            <Button kind="primary" submit isSending={isSending}>
              {isSending ? 'Connecting…' : name ? 'Store and reconnect' : 'Add and connect'}
            </Button>
          </div>
        </form>
      </Card>
    </Page>
  );
}
