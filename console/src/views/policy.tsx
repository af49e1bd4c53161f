// The access policy of a tenant: its rules and tests, what it would decide, and what it has decided.
import { useEffect, useState } from 'preact/hooks';

import { call, callTagged, Problem, type Schemas } from '../api/client';
import { asProblem, useLive } from '../live';
import { go, href, route } from '../router';
import { chooseTenant, may, oneTenant, tenants } from '../session';
import { Button, Confirm, Empty, Failed, Filter, Input, Loading, Note, Refused, Select, State, Tag, tell, useSubmit } from '../ui/controls';
import { Card, Page, Toolbar } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time, number } from '../ui/text';

type Document = Schemas['PolicyDocument'];
type Rule = Schemas['PolicyRule'];

const FIRST: Document = {
  default: 'allow',
  rules: [{ id: 'no-writes-for-guests', effect: 'deny', subjects: { groups: ['guests'] }, objects: { classes: ['write'] }, mode: 'shadow' }],
  tests: [],
} as unknown as Document;

const METHODS = ['tools/call', 'prompts/get', 'resources/read'].map(name => [name, name] as const);

/** Returns a selector in words. */
function words(selector: object | undefined): string {
  const members = Object.entries(selector ?? {}).filter(([, values]) => Array.isArray(values));
  return members.map(([member, values]) => `${member} ${(values as string[]).join(', ') || '(none)'}`).join('; ') || 'everything';
}

export function PolicyView() {
  const owner = route.value.rest[0] || oneTenant.value;
  /** The text to edit, and the version that it replaces. */
  const [editing, setEditing] = useState<{ text: string; tag: string | null }>();
  /** The version that is to be removed. */
  const [removing, setRemoving] = useState<{ tag: string | null }>();
  const params = { tenant: owner };
  const choose = (name: string) => {
    chooseTenant(name);
    go(href('policy', [name]));
  };
  const live = useLive<{ document: Document | null; tag: string | null }>(
    async () => {
      try {
        const { value, tag } = await callTagged<Document>('GET /admin/v1/tenants/{tenant}/policy', { params });
        return { document: value, tag };
      } catch (error) {
        const problem = asProblem(error);
        // A tenant that does not exist is another 404.
        if (problem.status === 404 && problem.message.includes('policy of tenant')) return { document: null, tag: null };
        throw problem;
      }
    },
    [owner],
    10_000,
  );
  useEffect(() => setEditing(undefined), [owner]);
  const stored = live.value;
  const document = stored?.document;
  const mayWrite = may('PUT /admin/v1/tenants/{tenant}/policy');
  return (
    <Page
      title="Policy"
      lead={`Who may use which tools, prompts and resources of tenant ${owner}.`}
      problem={live.problem}
      actions={
        mayWrite &&
        stored &&
        editing === undefined && (
          <>
            {document && (
              <Button kind="danger" run={() => setRemoving(stored)}>
                Remove
              </Button>
            )}
            <Button kind={document ? undefined : 'primary'} run={() => setEditing({ text: JSON.stringify(document ?? FIRST, null, 2), tag: stored.tag })}>
              {document ? 'Edit' : 'Write a policy'}
            </Button>
          </>
        )
      }
    >
      {tenants.value.length > 1 && (
        <Toolbar>
          <Filter label="Tenant" value={owner} set={choose} options={tenants.value.map(name => [name, name] as const)} />
        </Toolbar>
      )}
      {!stored && !live.problem && <Loading />}
      {editing !== undefined && (
        <Editor
          owner={owner}
          tag={editing.tag}
          first={editing.text}
          close={() => setEditing(undefined)}
          saved={() => {
            setEditing(undefined);
            void live.again();
          }}
        />
      )}
      {stored && editing === undefined && (
        <Card
          title="Rules"
          actions={
            document && (
              <span class="tags">
                <Tag>default: {document.default ?? 'allow'}</Tag>
                {document.mode === 'shadow' && <Tag tone="warn">whole policy in shadow</Tag>}
                <Tag>{document.tests?.length === 1 ? '1 test' : `${number(document.tests?.length ?? 0)} tests`}</Tag>
              </span>
            )
          }
        >
          {document && document.rules?.length ? (
            <Table
              label="Rules"
              rows={document.rules}
              id={(rule: Rule) => rule.id}
              columns={[
                { title: 'Rule', width: '20%', cell: rule => <strong><Text>{rule.id}</Text></strong> },
                { title: 'Effect', width: '110px', cell: rule => <State>{rule.effect}</State> },
                { title: 'Mode', width: '100px', wide: true, cell: rule => (rule.mode === 'shadow' ? <Tag tone="warn">shadow</Tag> : 'enforce') },
                { title: 'Subjects', cell: rule => <Text>{words(rule.subjects)}</Text> },
                { title: 'Objects', cell: rule => <Text>{words(rule.objects)}</Text> },
                { title: 'Reason', wide: true, cell: rule => <Text>{rule.reason ?? ''}</Text> },
              ]}
            />
          ) : (
            <Empty title={document ? 'The policy has no rules.' : 'Without a policy, everything is allowed.'} />
          )}
        </Card>
      )}
      {document && may('POST /admin/v1/tenants/{tenant}/policy/check') && <Check owner={owner} />}
      {document && may('GET /admin/v1/tenants/{tenant}/policy/report') && <Report owner={owner} />}
      {removing && (
        <Confirm
          title="Remove the policy?"
          act="Remove it"
          close={() => setRemoving(undefined)}
          run={async () => {
            await call('DELETE /admin/v1/tenants/{tenant}/policy', { params, headers: removing.tag ? { 'if-match': removing.tag } : {} });
            tell('The policy is removed.');
            await live.again();
          }}
        >
          <p>Every client of {owner} may then use everything.</p>
        </Confirm>
      )}
    </Page>
  );
}

function Editor({ owner, tag, first, close, saved }: { owner: string; tag: string | null; first: string; close: () => void; saved: () => void }) {
  const [text, setText] = useState(first);
  const { problem, isSending, submit } = useSubmit(async () => {
    try {
      JSON.parse(text);
    } catch (error) {
      throw new Problem(0, 'page', `The policy is not JSON: ${(error as Error).message}`, []);
    }
    const headers: Record<string, string> = tag ? { 'if-match': tag } : { 'if-none-match': '*' };
    const answer = await call<Schemas['PolicyView']>('PUT /admin/v1/tenants/{tenant}/policy', { params: { tenant: owner }, body: text, headers });
    const warnings = answer.warnings ?? [];
    tell(warnings.length ? `Stored. ${warnings.length} patterns match nothing yet.` : 'The policy is in force.');
    saved();
  });
  return (
    <Card title="Policy as JSON">
      <form onSubmit={submit}>
        {problem?.kind === 'policy-test-failed' && <Note tone="warn">A test of the policy fails, so it is not in force.</Note>}
        <Refused problem={problem} />
        <Input label="Policy" value={text} set={setText} lines={22} code hint="Rules of effect deny win. A policy whose own test fails is refused." />
        <div class="actions">
          <Button run={close}>Cancel</Button>
          <Button kind="primary" submit isSending={isSending}>
            Put into force
          </Button>
        </div>
      </form>
    </Card>
  );
}

/** What decided a check without a rule. */
const DECIDERS: Record<string, string> = { default: 'the default', shadow: 'the shadow mode of the policy', no_policy: 'the absence of a policy' };

function Check({ owner }: { owner: string }) {
  const [asked, setAsked] = useState({ principal: '', groups: '', scopes: '', method: 'tools/call', object: '' });
  const [found, setFound] = useState<Schemas['PolicyCheckView']>();
  const set = (member: keyof typeof asked) => (value: string) => setAsked({ ...asked, [member]: value });
  const list = (text: string) => text.split(/[\s,]+/).filter(Boolean);
  const { problem, isSending, submit } = useSubmit(async () => {
    setFound(undefined);
    const body = { as: { principal: asked.principal || undefined, groups: list(asked.groups), scopes: list(asked.scopes) }, method: asked.method, object: asked.object };
    setFound(await call('POST /admin/v1/tenants/{tenant}/policy/check', { params: { tenant: owner }, body }));
  });
  return (
    <Card title="Check a decision">
      <form onSubmit={submit}>
        <div class="pair">
          <Input label="Principal" value={asked.principal} set={set('principal')} fault={problem?.of('as.principal')} />
          <Input label="Groups" value={asked.groups} set={set('groups')} fault={problem?.of('as.groups')} />
          <Input label="Scopes" value={asked.scopes} set={set('scopes')} fault={problem?.of('as.scopes')} />
        </div>
        <div class="pair">
          <Select label="Method" value={asked.method} set={set('method')} options={METHODS} fault={problem?.of('method')} />
          <Input label="Object" value={asked.object} set={set('object')} required placeholder="files/read_file" code fault={problem?.of('object')} />
        </div>
        <Refused problem={problem} except={['as', 'method', 'object']} />
        <div class="actions">
          <Button kind="primary" submit isSending={isSending}>
            Check
          </Button>
        </div>
      </form>
      {found && (
        <div role="status" class="list">
          <p>
            <State>{found.verdict}</State> by {found.rule ? <code>{found.rule}</code> : DECIDERS[found.decided_by]}
            {Boolean(found.required_scopes?.length) && <> (needs {found.required_scopes?.join(', ')})</>}
            {found.shadow_verdict && <>; rules in shadow would decide {found.shadow_verdict}</>}. {number(found.hidden)} listed objects are hidden from this subject.
          </p>
          {found.note && <p class="note">{found.note}.</p>}
          <div class="tags">
            {found.considered.map(rule => (
              <Tag key={rule.rule} tone={rule.outcome === 'applied' ? 'info' : ''}>
                {`${rule.rule}: ${rule.outcome.replace('_', ' ')}`}
              </Tag>
            ))}
          </div>
        </div>
      )}
    </Card>
  );
}

function Report({ owner }: { owner: string }) {
  const [since, setSince] = useState('1h');
  const live = useLive<Schemas['PolicyReportView']>(() => call('GET /admin/v1/tenants/{tenant}/policy/report', { params: { tenant: owner }, query: { since } }), [owner, since], 5_000);
  const rows = live.value?.decisions ?? [];
  return (
    <Card
      title="Decisions of the policy"
      actions={<Filter label="Time" value={since} set={setSince} options={[['15m', 'Last 15 minutes'], ['1h', 'Last hour'], ['24h', 'Last 24 hours']]} />}
    >
      <Failed problem={live.problem} />
      {!live.value && !live.problem && <Loading />}
      {rows.length ? (
        <Table
          label="Decisions"
          rows={rows}
          id={row => `${row.rule} ${row.verdict} ${row.mode}`}
          columns={[
            { title: 'Rule', width: '20%', cell: row => <Text>{row.rule ?? 'default'}</Text> },
            { title: 'Verdict', width: '120px', cell: row => <State>{row.verdict}</State> },
            { title: 'Mode', width: '90px', cell: row => (row.mode === 'shadow' ? <Tag tone="warn">shadow</Tag> : row.mode) },
            { title: 'Count', width: '80px', end: true, by: row => row.count, cell: row => number(row.count) },
            { title: 'Last', width: '130px', wide: true, cell: row => <Time at={row.last_at} /> },
            { title: 'Principals', wide: true, cell: row => <Text>{row.principals.join(', ')}</Text> },
            { title: 'Objects', wide: true, cell: row => <Text>{row.objects.join(', ')}</Text> },
          ]}
        />
      ) : (
        live.value && <Empty title="Nothing was refused, and no rule in shadow would have refused anything." />
      )}
    </Card>
  );
}
