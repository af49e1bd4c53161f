// The broker at one glance.
import { useRef } from 'preact/hooks';

import { call, jsonFrom, refuse, send, type Schemas } from '../api/client';
import { useLive } from '../live';
import { href } from '../router';
import { chooseTenant, may, operator } from '../session';
import { Empty, Failed, Loading, Note, State, Tag } from '../ui/controls';
import { Icon, type IconName } from '../ui/icons';
import { Card, Facts, Page } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time, duration, number } from '../ui/text';

type View = Schemas['OverviewView'];

const PAUSE = 3_000;
const POINTS = 40;
/** Backends that the broker lists in each part of the overview. */
const LISTED_MAX = 20;

function Stat({ icon, name, value, of, about, to, bad, children }: { icon: IconName; name: string; value: number | undefined; of?: number; about: string; to?: string; bad?: boolean; children?: preact.ComponentChildren }) {
  const content = (
    <>
      <span class="name">
        <Icon name={icon} />
        {name}
      </span>
      <span class="value">
        {value === undefined ? 'unknown' : number(value)}
        {of !== undefined && <small> / {number(of)}</small>}
      </span>
      <span class="about">{about}</span>
      {children}
    </>
  );
  const look = `stat ${bad ? 'bad' : ''}`;
  return to ? (
    <a class={look} href={to}>
      {content}
    </a>
  ) : (
    <div class={look}>{content}</div>
  );
}

function Bar({ counts }: { counts: Record<string, number> }) {
  const tones: Record<string, string> = { ready: 'good', degraded: 'warn', connecting: 'warn', failed: 'bad' };
  const order = ['ready', 'connecting', 'degraded', 'failed', 'disabled'];
  return (
    <span class="bar" aria-hidden="true">
      {order.map(state => counts[state] && <i key={state} class={tones[state] ?? ''} style={{ flexGrow: counts[state] }} />)}
    </span>
  );
}

/** The last minutes of a number, as far as this page has seen them. */
function Spark({ points }: { points: readonly number[] }) {
  if (points.length < 2) return <svg class="spark" aria-hidden="true" />;
  const top = Math.max(...points, 1);
  const line = points.map((value, at) => `${((at / (POINTS - 1)) * 100).toFixed(1)},${(28 - (value / top) * 26).toFixed(1)}`).join('L');
  const end = ((points.length - 1) / (POINTS - 1)) * 100;
  return (
    <svg class="spark" viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true">
      <path class="under" d={`M0,30L${line}L${end.toFixed(1)},30Z`} />
      <path d={`M${line}`} />
    </svg>
  );
}

function summary(counts: Record<string, number>): string {
  return Object.entries(counts).filter(([state]) => state !== 'ready').map(([state, count]) => `${count} ${state}`).join(', ') || 'all ready';
}

const NO_DATABASE = 'the database does not answer';

interface Work {
  tenant: string;
  what: string;
  count: number;
  to: string;
}

/** Returns what waits for a person, as far as the operator sees it. */
function workOf(view: View): Work[] {
  const work: Work[] = view.holding.map(({ tenant, backend, held }) => ({ tenant, what: `held at ${backend}`, count: held, to: href('backends', [tenant, backend]) }));
  for (const { tenant, approvals, reconnect, ended } of view.waiting?.tenants ?? []) {
    if (may('GET /admin/v1/tenants/{tenant}/approvals')) work.push({ tenant, what: 'calls that wait for approval', count: approvals, to: href('approvals') });
    if (may('GET /admin/v1/tenants/{tenant}/connections')) {
      work.push({ tenant, what: 'connections to make again', count: reconnect, to: href('connections') });
      work.push({ tenant, what: 'connections whose token has ended', count: ended, to: href('connections') });
    }
  }
  return work.filter(({ count }) => count > 0);
}

export function Overview() {
  const tag = useRef<string | undefined>(undefined);
  const history = useRef<{ calls: number[]; sessions: number[] }>({ calls: [], sessions: [] });
  const live = useLive<View>(
    async old => {
      const headers: Record<string, string> = old && tag.current ? { 'if-none-match': tag.current } : {};
      const response = await send('GET', '/admin/v1/overview', { headers });
      let view: View;
      if (response.status === 304 && old) view = { ...old, uptime_seconds: old.uptime_seconds + PAUSE / 1_000 };
      else if (response.ok) {
        view = await jsonFrom<View>(response);
        tag.current = response.headers.get('etag') ?? undefined;
      } else return refuse(response);
      const { calls, sessions } = history.current;
      history.current = { calls: [...calls, view.calls_in_flight].slice(-POINTS), sessions: [...sessions, view.sessions].slice(-POINTS) };
      return view;
    },
    [],
    PAUSE,
  );
  const nodes = useLive(async () => (may('GET /admin/v1/nodes') ? call<Schemas['NodeList']>('GET /admin/v1/nodes') : undefined), [], 5_000);
  const file = useLive(
    async () => (may('GET /admin/v1/configuration') ? call<Schemas['ConfigurationView']>('GET /admin/v1/configuration') : undefined),
    [],
    10_000,
  );
  const recent = useLive(
    async () => (may('GET /admin/v1/activity') ? call<Schemas['ActivityList']>('GET /admin/v1/activity', { query: { limit: 8 } }) : undefined),
    [],
    4_000,
  );
  const view = live.value;
  if (!view) return <Page title="Overview" problem={live.problem}>{live.problem ? null : <Loading />}</Page>;

  const backends = Object.values(view.backends).reduce((sum, count) => sum + count, 0);
  const open = (view.breakers['open'] ?? 0) + (view.breakers['half_open'] ?? 0);
  // The numbers of whole tenants: an owner of backends would see a zero instead.
  const seesTenants = !operator.value?.backends;
  const refused = file.value?.refused;
  const work = workOf(view);
  return (
    <Page
      title="Overview"
      problem={live.problem}
      lead={
        <>
          Replica <span class="mono">{view.replica}</span>, version {view.version}, up for {duration(view.uptime_seconds)}
        </>
      }
      actions={<State>{view.readiness}</State>}
    >
      <Failed problem={file.problem} what="The state of the configuration file is" tone="warn" />
      {refused && (
        <Note tone="bad">
          <strong>The configuration file is not in force.</strong> The reload of <Time at={refused.at} /> was refused:
          <ul>
            {refused.faults.map(fault => (
              <li key={fault}>{fault}</li>
            ))}
          </ul>
        </Note>
      )}
      {Boolean(file.value?.needs_restart.length) && (
        <Note tone="warn">Changed in the file, in force after a restart: {file.value?.needs_restart.join(', ')}</Note>
      )}
      <div class="stats">
        <Stat icon="backends" name="Backends ready" value={view.backends['ready'] ?? 0} of={backends} about={backends ? summary(view.backends) : 'none registered'} to={href('backends')} bad={Boolean(view.backends['failed'])}>
          <Bar counts={view.backends} />
        </Stat>
        <Stat icon="warning" name="Open breakers" value={open} about={`of ${number(backends)} backends`} to={href('backends', [], { state: open ? 'breaker' : undefined })} bad={open > 0} />
        <Stat icon="activity" name="Calls in flight" value={view.calls_in_flight} about={`${number(view.calls_queued)} waiting for room`}>
          <Spark points={history.current.calls} />
        </Stat>
        {seesTenants && (
          <Stat icon="sessions" name="Sessions" value={view.sessions} about="at this replica" {...(may('GET /admin/v1/sessions') ? { to: href('sessions') } : {})}>
            <Spark points={history.current.sessions} />
          </Stat>
        )}
        <Stat icon="pins" name="Held by pins" value={view.held} about={view.held ? `at ${number(view.holding.length)} backends${view.holding.length < LISTED_MAX ? '' : ' or more'}` : 'nothing is kept from clients'} bad={view.held > 0} />
        {seesTenants && may('GET /admin/v1/tenants/{tenant}/approvals') && (
          <Stat
            icon="approvals"
            name="Waiting approvals"
            value={view.waiting?.approvals}
            about={view.waiting ? 'calls that a person decides about' : NO_DATABASE}
            to={href('approvals')}
            bad={Boolean(view.waiting?.approvals)}
          />
        )}
        {seesTenants && may('GET /admin/v1/tenants/{tenant}/connections') && (
          <Stat
            icon="connections"
            name="Broken connections"
            value={view.waiting?.reconnect}
            about={view.waiting ? `must connect again; ${number(view.waiting.ended)} with an ended token` : NO_DATABASE}
            to={href('connections')}
            bad={Boolean(view.waiting?.reconnect)}
          />
        )}
        <Stat icon="catalog" name="Tools" value={view.tools} about={`${number(view.prompts)} prompts, ${number(view.resources)} resources`} to={href('catalog')} />
        <Stat icon="operators" name="Tenants" value={view.tenants} about="that you see" />
      </div>
      <div class="cards">
        <Card title="Needs attention" actions={view.troubled.length >= LISTED_MAX && <a href={href('backends')}>All backends</a>} wide>
          {view.troubled.length >= LISTED_MAX && <p class="soft">These are the first {LISTED_MAX}.</p>}
          {view.troubled.length ? (
            <Table
              label="Backends that need attention"
              rows={view.troubled}
              id={row => `${row.tenant}/${row.backend}`}
              columns={[
                { title: 'Backend', width: '24%', cell: row => <a href={href('backends', [row.tenant, row.backend])}>{row.backend}</a> },
                { title: 'Tenant', width: '14%', wide: true, cell: row => row.tenant },
                { title: 'State', width: '150px', cell: row => <State>{row.breaker && row.state === 'ready' ? `breaker ${row.breaker}` : row.state}</State> },
                { title: 'Last error', wide: true, cell: row => <Text>{row.last_error ?? ''}</Text> },
              ]}
            />
          ) : (
            <Empty title={backends ? 'Every backend is ready, every breaker is closed.' : 'No backend is registered yet.'}>
              {!backends && may('PUT /admin/v1/tenants/{tenant}/backends/{backend}') && (
                <a class="button primary" href={href('backends', ['+'])}>
                  Add a backend
                </a>
              )}
            </Empty>
          )}
        </Card>
        {work.length > 0 && (
          <Card title="Waiting for a person" wide>
            <Table
              label="Waiting for a person"
              rows={work}
              id={row => `${row.tenant} ${row.what}`}
              columns={[
                { title: 'Tenant', width: '30%', cell: row => row.tenant },
                { title: 'What', cell: row => <a href={row.to} onClick={() => chooseTenant(row.tenant)}>{row.what}</a> },
                { title: 'Count', width: '90px', end: true, cell: row => number(row.count) },
              ]}
            />
          </Card>
        )}
        {(recent.value || recent.problem) && (
          <Card title="Recent refusals and errors" actions={<a href={href('activity')}>All activity</a>} wide>
            <Failed problem={recent.problem} what="Recent refusals and errors are" tone="warn" />
            {recent.value?.entries.length ? (
              <Table
                label="Recent refusals and errors"
                rows={recent.value.entries.toReversed()}
                id={row => String(row.number)}
                columns={[
                  { title: 'At', width: '110px', cell: row => <Time at={row.at} /> },
                  { title: 'Principal', width: '20%', wide: true, cell: row => <Text>{row.principal}</Text> },
                  { title: 'Request', cell: row => <><span class="soft"><Text>{row.method}</Text></span> <Text>{row.target ?? ''}</Text></> },
                  { title: 'Outcome', width: '150px', cell: row => <State>{row.error ?? row.outcome}</State> },
                ]}
              />
            ) : (
              recent.value && <Empty title="Nothing was refused or failed since this replica started." />
            )}
          </Card>
        )}
        {(nodes.value || nodes.problem) && (
          <Card title="Replicas" wide>
            <Failed problem={nodes.problem} what="The replicas are" tone="warn" />
            <ul class="list">
              {(nodes.value?.nodes ?? []).map(node => (
                <li key={node.node}>
                  <Facts>
                    {[
                      ['Name', <span class="mono">{node.node}</span>],
                      ['State', <State>{node.draining ? 'draining' : 'ready'}</State>],
                      node.address != null && ['Address', <span class="mono">{node.address}</span>],
                      node.lease_ms != null && ['Lease left', `${node.lease_ms} ms`],
                      node.is_this && ['', <Tag tone="info">answers this page</Tag>],
                    ]}
                  </Facts>
                </li>
              ))}
            </ul>
          </Card>
        )}
      </div>
    </Page>
  );
}
