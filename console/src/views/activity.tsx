// Recent requests that failed, or that a policy did not plainly allow.
import { call, type Schemas } from '../api/client';
import { useLive } from '../live';
import { route, setQuery } from '../router';
import { tenant, tenants, chooseTenant } from '../session';
import { Empty, Filter, Loading, State } from '../ui/controls';
import { Page, Toolbar } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time, milliseconds, number } from '../ui/text';

type Entry = Schemas['ActivityEntry'];
interface Seen {
  replica: string;
  entries: Entry[];
}

const KEPT = 1_000;

function isSame(one: Entry, other: Entry): boolean {
  return one.number === other.number && one.at === other.at && one.request_id === other.request_id;
}

export function Activity() {
  const chosen = tenant.value;
  const { query } = route.value;
  const sought = (query.get('q') ?? '').toLowerCase();
  const outcome = query.get('outcome') ?? '';
  const live = useLive<Seen>(
    async old => {
      const newest = old?.entries.at(-1);
      const ask = (after: number) =>
        call<Schemas['ActivityList']>('GET /admin/v1/activity', { query: { tenant: chosen, after: after || undefined, limit: 1000 } });
      // The answer begins with the newest known entry. Otherwise another replica answered, or a new process of this one: both count their
      // own entries. The second answer may be of the first replica again, with all its entries.
      let page = await ask(newest ? newest.number - 1 : 0);
      const [first, ...newer] = page.entries;
      if (old && newest && page.replica === old.replica && first && isSame(first, newest)) {
        return { replica: page.replica, entries: [...old.entries, ...newer].slice(-KEPT) };
      }
      if (newest) page = await ask(0);
      return page;
    },
    [chosen],
    2_500,
  );
  const all = live.value?.entries ?? [];
  const outcomes = [...new Set(all.map(entry => entry.outcome))].sort();
  const rows = all
    .filter(entry => (!outcome || entry.outcome === outcome) && (!sought || `${entry.principal} ${entry.target ?? ''} ${entry.error ?? ''} ${entry.backend ?? ''} ${entry.rule ?? ''} ${entry.trace_id ?? ''} ${entry.request_id}`.toLowerCase().includes(sought)))
    .toReversed();
  return (
    <Page
      title="Activity"
      lead={
        <>
          Requests that were refused or failed, newest first, as replica <span class="mono">{live.value?.replica ?? '…'}</span> saw them. Arguments and results are not kept.
        </>
      }
      problem={live.problem}
    >
      <Toolbar count={live.value && number(rows.length)}>
        <Filter label="Search activity" value={query.get('q') ?? ''} set={q => setQuery({ q })} />
        <Filter label="Outcome" value={outcome} set={value => setQuery({ outcome: value })} options={[['', 'Every outcome'], ...outcomes.map(name => [name, name.replace('_', ' ')] as const)]} />
        {tenants.value.length > 1 && (
          <Filter label="Tenant" value={chosen} set={chooseTenant} options={[['', 'Every tenant'], ...tenants.value.map(name => [name, name] as const)]} />
        )}
      </Toolbar>
      {!live.value && !live.problem && <Loading />}
      {live.value && !rows.length && (
        <div class="card">
          <Empty title={all.length ? 'Nothing fits the filter.' : 'Nothing was refused or failed since this replica started.'} />
        </div>
      )}
      {rows.length > 0 && (
        <Table
          label="Activity"
          tall
          rows={rows}
          id={entry => String(entry.number)}
          columns={[
            { title: 'At', width: '115px', cell: entry => <Time at={entry.at} /> },
            { title: 'Principal', width: '17%', wide: true, cell: entry => <Text>{`${entry.tenant} / ${entry.principal}`}</Text> },
            { title: 'Method', width: '140px', wide: true, cell: entry => <Text>{entry.method}</Text> },
            { title: 'Target', cell: entry => <Text>{entry.target ?? '–'}</Text> },
            { title: 'Outcome', width: '170px', cell: entry => <State>{entry.error ?? entry.outcome}</State> },
            { title: 'Rule', width: '12%', wide: true, cell: entry => (entry.verdict && entry.verdict !== 'allow' ? <Text>{`${entry.verdict}: ${entry.rule ?? 'default'}`}</Text> : '') },
            { title: 'Took', width: '85px', wide: true, end: true, cell: entry => milliseconds(entry.duration_ms) },
            { title: 'Trace or request', width: '150px', wide: true, cell: entry => <span class="mono" title={entry.trace_id ?? entry.request_id}>{entry.trace_id ?? entry.request_id}</span> },
          ]}
        />
      )}
    </Page>
  );
}
