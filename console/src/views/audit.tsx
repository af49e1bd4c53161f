// The audit log: what operators changed and clients did, and whether the log is whole.
import { useState } from 'preact/hooks';

import { call, callAll, refuse, send, type Schemas } from '../api/client';
import { asProblem, useLive } from '../live';
import { route, setQuery } from '../router';
import { operator, tenants } from '../session';
import { Button, Dialog, Empty, Filter, Loading, Note, State, Tag } from '../ui/controls';
import { Facts, Page, Toolbar } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time, milliseconds, number } from '../ui/text';

type Entry = Schemas['AuditEntry'];

const SPANS = [['1h', 'Last hour'], ['24h', 'Last 24 hours'], ['168h', 'Last 7 days'], ['720h', 'Last 30 days'], ['all', 'All']] as const;
/** Records that the page reads at most; the export has all. */
const READ_MAX = 5_000;

export function Audit() {
  const { query } = route.value;
  const span = query.get('since') || '24h';
  const since = span === 'all' ? '' : span;
  const kind = query.get('kind') ?? '';
  const isLimited = Boolean(operator.value?.tenants);
  const owner = query.get('tenant') ?? (isLimited ? (tenants.value[0] ?? '') : '');
  const sought = (query.get('q') ?? '').toLowerCase();
  const [shown, setShown] = useState<Entry>();
  const live = useLive<{ records: Entry[]; cut: boolean }>(
    async () => {
      const records: Entry[] = [];
      let after: number | undefined;
      do {
        const page: Schemas['AuditList'] = await call('GET /admin/v1/audit', { query: { since, kind, tenant: owner, order: 'newest', limit: 1000, after } });
        records.push(...page.records);
        after = page.next ?? undefined;
      } while (after !== undefined && records.length < READ_MAX);
      return { records, cut: after !== undefined };
    },
    // Without a pause: the log has a record of each request for it.
    [since, kind, owner],
  );
  const rows = (live.value?.records ?? []).filter(
    row => !sought || `${row.principal} ${row.action} ${row.target ?? ''} ${row.outcome} ${row.error ?? ''} ${row.request_id}`.toLowerCase().includes(sought),
  );
  const download = async () => {
    const response = await send('GET', '/admin/v1/audit/export', { query: { since, kind, tenant: owner } });
    if (!response.ok) return refuse(response);
    const address = URL.createObjectURL(await response.blob());
    const link = document.createElement('a');
    link.href = address;
    link.download = 'audit.jsonl';
    link.click();
    URL.revokeObjectURL(address);
  };
  return (
    <Page
      title="Audit"
      lead="What operators changed and what clients did. The records form chains that show later changes."
      problem={live.problem}
      actions={
        <>
          <Verified key={owner} owner={owner} />
          <Button icon="refresh" run={live.again}>
            Refresh
          </Button>
          <Button icon="download" run={download}>
            Export
          </Button>
        </>
      }
    >
      <Toolbar count={live.value && number(rows.length)}>
        <Filter label="Search the audit log" value={query.get('q') ?? ''} set={q => setQuery({ q })} />
        <Filter label="Time" value={span} set={value => setQuery({ since: value })} options={SPANS} />
        <Filter label="Kind" value={kind} set={value => setQuery({ kind: value })} options={[['', 'Operators and clients'], ['admin', 'Operators'], ['call', 'Clients']]} />
        {tenants.value.length > 1 && (
          <Filter label="Tenant" value={owner} set={value => setQuery({ tenant: value })} options={[...(isLimited ? [] : [['', 'Every tenant'] as const]), ...tenants.value.map(name => [name, name] as const)]} />
        )}
      </Toolbar>
      {live.value?.cut && <Note>The page shows the newest {number(READ_MAX)} records of this time. The export has all.</Note>}
      {!live.value && !live.problem && <Loading />}
      {live.value && !rows.length && (
        <div class="card">
          <Empty title={live.value.records.length ? 'No record fits the filter.' : 'No record exists for this time.'}>
            <p>Requests of clients are recorded with audit.calls of the configuration.</p>
          </Empty>
        </div>
      )}
      {rows.length > 0 && (
        <Table
          label="Audit records"
          tall
          rows={rows}
          id={row => String(row.number)}
          columns={[
            { title: 'At', width: '135px', cell: row => <Button kind="quiet" run={() => setShown(row)}><Time at={row.at} /></Button> },
            { title: 'Who', width: '17%', cell: row => <Text>{row.principal}</Text> },
            { title: 'Did', cell: row => <Text>{row.action}</Text> },
            { title: 'To', wide: true, cell: row => <Text>{row.target ?? ''}</Text> },
            { title: 'Tenant', width: '10%', wide: true, cell: row => row.tenant ?? '–' },
            { title: 'Outcome', width: '135px', cell: row => <State>{row.outcome}</State> },
          ]}
        />
      )}
      {shown && <Shown entry={shown} close={() => setShown(undefined)} />}
    </Page>
  );
}

interface Misfit {
  tenant: string;
  number: number | undefined;
  detail: string;
}

/** Verifies one chain, page by page. `count` gets the number of records of each page. */
async function verifyChain(tenant: string, count: (records: number) => void): Promise<Misfit | undefined> {
  let after: string | undefined;
  do {
    const page: Schemas['AuditVerdict'] = await call('GET /admin/v1/audit/verify', { query: { tenant, after } });
    count(page.records);
    if (page.misfit) return { tenant, number: page.misfit.number ?? undefined, detail: page.misfit.detail };
    after = page.next ?? undefined;
  } while (after);
  return undefined;
}

/** Names the chain of the first misfit, as `mcp-broker audit verify` does. */
function misfitText(misfits: readonly Misfit[]): string {
  const [first] = misfits.toSorted((one, other) => (one.number ?? Number.MAX_SAFE_INTEGER) - (other.number ?? Number.MAX_SAFE_INTEGER));
  if (!first) return '';
  const chain = first.tenant ? `the chain of tenant ${first.tenant}` : 'the chain without a tenant';
  const which = first.number === undefined ? chain : `record ${first.number} of ${chain}`;
  const others = misfits.length - 1;
  const more = others ? `; ${number(others)} more ${others === 1 ? 'chain does' : 'chains do'} not pass the verification` : '';
  return `${which} does not pass the verification: ${first.detail}${more}`;
}

/** Verifies the chain of the shown tenant, or every chain that the operator sees, and shows the result. */
function Verified({ owner }: { owner: string }) {
  const [state, setState] = useState<{ kind: 'good' | 'bad' | 'info'; text: string }>();
  const verify = async () => {
    let records = 0;
    const count = (more: number) => {
      records += more;
      setState({ kind: 'info', text: `${number(records)} verified…` });
    };
    try {
      const chains = owner ? [owner] : (await callAll<Schemas['ChainView']>('GET /admin/v1/audit/chains', 'chains')).map(chain => chain.tenant ?? '');
      const misfits: Misfit[] = [];
      for (const tenant of chains) {
        const misfit = await verifyChain(tenant, count);
        if (misfit) misfits.push(misfit);
      }
      const where = owner ? `of ${owner}` : `in ${number(chains.length)} chains`;
      setState(misfits.length ? { kind: 'bad', text: misfitText(misfits) } : { kind: 'good', text: `${number(records)} records ${where} verified` });
    } catch (error) {
      setState({ kind: 'bad', text: asProblem(error).message });
    }
  };
  return (
    <>
      {state && (
        <span role="status">
          <Tag tone={state.kind}>
            <Text>{state.text}</Text>
          </Tag>
        </span>
      )}
      <Button icon="check" run={verify}>
        Verify
      </Button>
    </>
  );
}

/** Returns the lines of two texts, each with whether it is in both. */
function difference(before: string, after: string): { old: (readonly [string, boolean])[]; new: (readonly [string, boolean])[] } {
  const [one, other] = [before.split('\n'), after.split('\n')];
  const [inOne, inOther] = [new Set(one), new Set(other)];
  return { old: one.map(line => [line, inOther.has(line)] as const), new: other.map(line => [line, inOne.has(line)] as const) };
}

function Shown({ entry, close }: { entry: Entry; close: () => void }) {
  const { before, after, ...rest } = entry as Entry & { before?: unknown; after?: unknown };
  const json = (value: unknown) => (value === undefined ? '' : JSON.stringify(value, null, 2));
  const lines = difference(json(before), json(after));
  return (
    <Dialog title={`Record ${entry.number}`} close={close} wide>
      <Facts>
        {[
          ['At', <Time at={rest.at} />],
          ['Who', <Text>{rest.principal}</Text>],
          ['Outcome', <State>{rest.outcome}</State>],
          ['Did', <Text>{rest.action}</Text>],
          rest.target != null && ['To', <Text>{rest.target}</Text>],
          rest.tenant != null && ['Tenant', rest.tenant],
          rest.error != null && ['Error', <Text>{rest.error}</Text>],
          rest.address != null && ['From', <span class="mono">{rest.address}</span>],
          rest.duration_ms != null && ['Took', milliseconds(rest.duration_ms)],
          ['Request', <span class="mono">{rest.request_id}</span>],
          rest.trace_id != null && ['Trace', <span class="mono">{rest.trace_id}</span>],
          ['Replica', <span class="mono">{rest.node}</span>],
        ]}
      </Facts>
      {(before !== undefined || after !== undefined) && (
        <div class="diff">
          <section>
            <h3>Before</h3>
            <pre class="json" tabIndex={0} role="region" aria-label="Before">
              {before === undefined ? 'nothing' : lines.old.map(([line, both], at) => (both ? <Text key={at} multiline>{`${line}\n`}</Text> : <del key={at}><Text multiline>{line}</Text></del>))}
            </pre>
          </section>
          <section>
            <h3>After</h3>
            <pre class="json" tabIndex={0} role="region" aria-label="After">
              {after === undefined ? 'nothing' : lines.new.map(([line, both], at) => (both ? <Text key={at} multiline>{`${line}\n`}</Text> : <ins key={at}><Text multiline>{line}</Text></ins>))}
            </pre>
          </section>
        </div>
      )}
      <details>
        <summary>The whole record</summary>
        <pre class="json" tabIndex={0} role="region" aria-label="Record">
          <Text multiline>{JSON.stringify(rest, null, 2)}</Text>
        </pre>
      </details>
    </Dialog>
  );
}
