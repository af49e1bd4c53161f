// Toolsets of a tenant: their list, and one of them with what its endpoint lists for a subject.
import { useState } from 'preact/hooks';

import { call, callAll, callTagged, type List, type Schemas } from '../api/client';
import { useLive } from '../live';
import { go, href, route } from '../router';
import { chooseTenant, may, oneTenant, tenants } from '../session';
import { Trial, type Lists, type Message, type Subject } from '../trial';
import { Button, Confirm, Copy, Empty, Filter, Loading, Refused, State, Tag, tell, useSubmit } from '../ui/controls';
import { Card, Cut, Facts, Json, Page, Toolbar } from '../ui/page';
import { SubjectFields } from '../ui/subject';
import { Table } from '../ui/table';
import { Text, number } from '../ui/text';
import { ToolsetForm } from './toolset-form';

type View = Schemas['ToolsetView'];

const WRITE = 'PUT /admin/v1/tenants/{tenant}/toolsets/{toolset}';

export function ToolsetsView() {
  const { rest, query } = route.value;
  const [owner = '', name] = rest;
  if (owner === '+') return <ToolsetForm owner={oneTenant.value} />;
  if (name && query.get('edit')) return <ToolsetForm key={name} owner={owner} name={name} />;
  return name ? <One key={`${owner} ${name}`} owner={owner} name={name} /> : <All />;
}

function All() {
  const owner = oneTenant.value;
  const [sought, setSought] = useState('');
  const live = useLive<List<View>>(() => callAll<View>('GET /admin/v1/tenants/{tenant}/toolsets', 'toolsets', { params: { tenant: owner } }), [owner], 10_000);
  const rows = (live.value ?? []).filter(row => !sought || `${row.name} ${row.description ?? ''}`.toLowerCase().includes(sought.toLowerCase()));
  const add = may(WRITE) && (
    <a class="button primary" href={href('toolsets', ['+'])}>
      Add a toolset
    </a>
  );
  return (
    <Page title="Toolsets" lead="Bundles of tools, prompts and resources, each with an endpoint of its own." problem={live.problem} actions={add}>
      <Toolbar count={live.value && `${number(rows.length)} of ${number(live.value.length)}`}>
        <Filter label="Search toolsets" value={sought} set={setSought} />
        {tenants.value.length > 1 && <Filter label="Tenant" value={owner} set={chooseTenant} options={tenants.value.map(one => [one, one] as const)} />}
      </Toolbar>
      <Cut list={live.value} />
      {!live.value && !live.problem && <Loading />}
      {live.value && !rows.length && (
        <div class="card">
          <Empty title={live.value.length ? 'No toolset fits the filter.' : `Tenant ${owner} has no toolset.`}>
            <p>Clients of a toolset see what it holds, and nothing else.</p>
          </Empty>
        </div>
      )}
      {rows.length > 0 && (
        <Table
          label="Toolsets"
          tall
          rows={rows}
          id={row => row.name}
          order={[0, 1]}
          columns={[
            { title: 'Name', width: '24%', by: row => row.name, cell: row => <a href={href('toolsets', [owner, row.name])}>{row.name}</a> },
            { title: 'State', width: '150px', by: row => String(row.published), cell: row => <Published view={row} /> },
            { title: 'Tools', width: '80px', end: true, by: row => row.lists?.tools ?? -1, cell: row => (row.lists ? number(row.lists.tools) : '–') },
            { title: 'Tokens', width: '90px', end: true, wide: true, by: row => row.lists?.tokens ?? -1, cell: row => (row.lists ? number(row.lists.tokens) : '–') },
            { title: 'Description', wide: true, cell: row => <Text>{row.description ?? ''}</Text> },
            { title: 'From', width: '150px', wide: true, by: row => row.source, cell: row => (row.source === 'config' ? 'the configuration' : 'the admin API') },
          ]}
        />
      )}
    </Page>
  );
}

function Published({ view }: { view: View }) {
  return (
    <>
      <State>{view.published ? 'published' : 'not published'}</State> {view.enforce && <Tag tone="info">enforced</Tag>}
    </>
  );
}

function One({ owner, name }: { owner: string; name: string }) {
  const params = { tenant: owner, toolset: name };
  /** The version that is to be removed. */
  const [removing, setRemoving] = useState<{ tag: string | null }>();
  const live = useLive(() => callTagged<View>('GET /admin/v1/tenants/{tenant}/toolsets/{toolset}', { params }), [owner, name], 10_000);
  const view = live.value?.value;
  const back = { href: href('toolsets'), title: 'Toolsets' };
  if (!view) return <Page title={name} back={back} problem={live.problem}>{live.problem ? null : <Loading />}</Page>;
  const { name: _name, source, endpoint, lists, ...document } = view;
  const isOurs = source === 'api';
  return (
    <Page
      title={name}
      back={back}
      lead={view.description ? <Text>{view.description}</Text> : `A toolset of tenant ${owner}.`}
      problem={live.problem}
      actions={
        isOurs && (
          <>
            {may('DELETE /admin/v1/tenants/{tenant}/toolsets/{toolset}') && (
              <Button kind="danger" run={() => setRemoving(live.value)}>
                Remove
              </Button>
            )}
            {may(WRITE) && (
              <a class="button" href={href('toolsets', [owner, name], { edit: '1' })}>
                Edit
              </a>
            )}
          </>
        )
      }
    >
      <div class="cards">
        <Card title="Endpoint" actions={endpoint != null && <Copy text={endpoint} label="Copy the path" />}>
          <Facts>
            {[
              ['State', <Published view={view} />],
              endpoint != null && ['Path', <span class="mono">{endpoint}</span>],
              lists != null && ['Lists', `${number(lists.tools)} tools, ${number(lists.prompts)} prompts, ${number(lists.resources)} resources, ${number(lists.resource_templates)} templates`],
              lists != null && ['Size', `about ${number(lists.tokens)} tokens`],
              ['From', isOurs ? 'the admin API' : 'the configuration file, which alone changes it'],
            ]}
          </Facts>
          {lists == null && <p class="soft">Without publication it has no endpoint and lists nothing.</p>}
        </Card>
        <Card title="Document">
          <Json value={document} label="Document" />
        </Card>
      </div>
      {view.published && may('POST /admin/v1/tenants/{tenant}/try') && <Holds owner={owner} name={name} />}
      {removing && (
        <Confirm
          title={`Remove ${name}?`}
          act="Remove the toolset"
          close={() => setRemoving(undefined)}
          run={async () => {
            const { tag } = removing;
            await call('DELETE /admin/v1/tenants/{tenant}/toolsets/{toolset}', { params, headers: tag ? { 'if-match': tag } : {} });
            tell(`${name} is removed.`);
            go(href('toolsets'));
          }}
        >
          <p>The broker removes its endpoint at once. An enforced toolset then limits no callers.</p>
        </Confirm>
      )}
    </Page>
  );
}

interface Entry {
  kind: string;
  name: string;
  text: string;
}

function entriesOf(lists: Lists): Entry[] {
  const text = (value: unknown) => (typeof value === 'string' ? value : '');
  const of = (kind: string, member: string) => (entry: Message) => ({ kind, name: text(entry[member]), text: text(entry['description'] ?? entry['title']) });
  return [
    ...lists.tools.map(of('tool', 'name')),
    ...lists.prompts.map(of('prompt', 'name')),
    ...lists.resources.map(of('resource', 'uri')),
    ...lists.resourceTemplates.map(of('template', 'uriTemplate')),
  ];
}

/** What the endpoint lists for a subject. The data plane answers, so the subject's policy applies. */
function Holds({ owner, name }: { owner: string; name: string }) {
  const [subject, setSubject] = useState<Subject>({});
  const [entries, setEntries] = useState<Entry[]>();
  const { problem, isSending, submit } = useSubmit(async () => {
    setEntries(undefined);
    const nothing = { note: () => undefined, progress: () => undefined, ask: async () => ({ action: 'cancel' }) };
    setEntries(entriesOf(await new Trial(owner, subject, nothing, name).lists()));
  });
  return (
    <Card title="What does a subject see?">
      <form onSubmit={submit}>
        <SubjectFields owner={owner} set={setSubject} label="List as" />
        <Refused problem={problem} />
        <div class="actions">
          <Button kind="primary" submit isSending={isSending}>
            {isSending ? 'Listing…' : 'Show the lists'}
          </Button>
        </div>
      </form>
      <div role="status">
        {entries && <p class="soft">{entries.length ? `The endpoint lists ${entries.length === 1 ? '1 entry' : `${number(entries.length)} entries`} for this subject.` : 'The endpoint lists nothing for this subject.'}</p>}
      </div>
      {entries && entries.length > 0 && (
        <Table
          label="What the subject sees"
          rows={entries}
          id={row => `${row.kind} ${row.name}`}
          columns={[
            { title: 'Kind', width: '110px', by: row => row.kind, cell: row => row.kind },
            { title: 'Name', width: '40%', by: row => row.name, cell: row => <span class="mono"><Text>{row.name}</Text></span> },
            { title: 'Description', wide: true, cell: row => <Text>{row.text}</Text> },
          ]}
        />
      )}
    </Card>
  );
}
