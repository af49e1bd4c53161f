// Calls that wait for the decision of a person.
import { useState } from 'preact/hooks';

import { call, callAll, type Problem, type List, type Schemas } from '../api/client';
import { asProblem, useLive } from '../live';
import { href, route, setQuery } from '../router';
import { chooseTenant, may, oneTenant, tenants } from '../session';
import { Button, Dialog, Empty, Failed, Filter, Input, Loading, Note, Refused, Select, State, Tag, tell } from '../ui/controls';
import { Cut, Facts, Page, Toolbar } from '../ui/page';
import { Table } from '../ui/table';
import { Text, Time, number } from '../ui/text';

type Approval = Schemas['ApprovalView'];

const STATES = ['pending', 'approved', 'denied', 'expired', 'used'];
const WINDOWS = [['', 'this call only'], ['10m', 'the same tool for 10 minutes'], ['1h', 'the same tool for an hour']] as const;

/** Returns why the arguments of an approval are absent. */
function absent({ state }: Approval): string {
  return state === 'expired' ? 'The arguments were removed when the approval expired.' : 'The arguments are not shown to this role.';
}

export function Approvals() {
  const owner = oneTenant.value;
  const state = route.value.query.get('state') || 'pending';
  const [shown, setShown] = useState<string>();
  const live = useLive<List<Approval>>(
    () => callAll<Approval>('GET /admin/v1/tenants/{tenant}/approvals', 'approvals', { params: { tenant: owner }, query: { state: state === 'all' ? '' : state } }),
    [owner, state],
    2_500,
  );
  const rows = live.value ?? [];
  return (
    <Page title="Approvals" lead="Calls that a policy holds until a person decides. The decision counts for exactly these arguments, once." problem={live.problem}>
      <Toolbar count={live.value && number(rows.length)}>
        <Filter label="State" value={state} set={value => setQuery({ state: value })} options={[['all', 'Every state'], ...STATES.map(name => [name, name] as const)]} />
        {tenants.value.length > 1 && <Filter label="Tenant" value={owner} set={chooseTenant} options={tenants.value.map(name => [name, name] as const)} />}
      </Toolbar>
      <Cut list={live.value} />
      {!live.value && !live.problem && <Loading />}
      {live.value && !rows.length && (
        <div class="card">
          <Empty title={state === 'pending' ? 'No call waits for a decision.' : 'No approval is in this state.'}>
            <p>Rules with the effect “approve” make calls wait.</p>
          </Empty>
        </div>
      )}
      {rows.length > 0 && (
        <Table
          label="Calls that wait"
          tall
          rows={rows}
          id={row => row.id}
          columns={[
            { title: 'Tool', cell: row => <Button kind="quiet" run={() => setShown(row.id)}><Text>{`${row.backend}/${row.tool}`}</Text></Button> },
            { title: 'Principal', width: '22%', by: row => row.principal, cell: row => <Text>{row.principal}</Text> },
            { title: 'State', width: '150px', by: row => row.state, cell: row => <><State>{row.state}</State> {row.tool_changed && <Tag tone="bad">tool changed</Tag>}</> },
            { title: 'Rule', width: '16%', wide: true, cell: row => <Text>{row.rule}</Text> },
            { title: 'Asked', width: '120px', wide: true, by: row => row.created_at, cell: row => <Time at={row.created_at} /> },
            { title: 'Until', width: '120px', wide: true, by: row => row.expires_at, cell: row => <Time at={row.expires_at} /> },
          ]}
        />
      )}
      {shown && (
        <Decision
          owner={owner}
          id={shown}
          close={() => setShown(undefined)}
          decided={() => {
            setShown(undefined);
            void live.again();
          }}
        />
      )}
    </Page>
  );
}

function Decision({ owner, id, close, decided }: { owner: string; id: string; close: () => void; decided: () => void }) {
  const params = { tenant: owner, id };
  const live = useLive<Approval>(() => call('GET /admin/v1/tenants/{tenant}/approvals/{id}', { params }), [id], 3_000);
  const [reason, setReason] = useState('');
  const [span, setSpan] = useState('');
  const [problem, setProblem] = useState<Problem>();
  const approval = live.value;
  const decide = async (decision: 'approve' | 'deny') => {
    setProblem(undefined);
    try {
      const body = { decision, reason: reason || undefined, for: decision === 'approve' && span ? span : undefined };
      await call('POST /admin/v1/tenants/{tenant}/approvals/{id}', { params, body });
      tell(decision === 'approve' ? 'The call is approved.' : 'The call is denied.');
      decided();
    } catch (error) {
      setProblem(asProblem(error));
      await live.again();
    }
  };
  return (
    <Dialog title="A call that waits" close={close} wide>
      {!approval && !live.problem && <Loading />}
      <Failed problem={live.problem} />
      {approval && (
        <>
          <Facts>
            {[
              ['Tool', <strong><Text>{`${approval.backend}/${approval.tool}`}</Text></strong>],
              ['Principal', <Text>{approval.principal}</Text>],
              ['State', <State>{approval.state}</State>],
              ['Rule', <Text>{approval.rule}</Text>],
              approval.rule_reason != null && ['Why the rule asks', <Text>{approval.rule_reason}</Text>],
              ['Until', <Time at={approval.expires_at} />],
              ['Arguments', <code>{approval.arguments_hash.slice(0, 23)}…</code>],
              approval.pin != null && ['Pin of the tool', <code>{approval.pin.slice(0, 19)}…</code>],
              approval.decided_by != null && ['Decided by', <Text>{approval.decided_by}</Text>],
              approval.reason != null && ['Reason', <Text>{approval.reason}</Text>],
            ]}
          </Facts>
          {approval.tool_changed && (
            <Note tone="bad">
              <strong>{approval.state === 'expired' ? 'The call was not executed.' : 'This call will not be executed.'}</strong> The tool is not the one that the call was made for: its definition changed, or it is
              not listed any more. <a href={href('backends', [owner, approval.backend])}>Show the pins of {approval.backend}</a>. Its caller is told to ask again.
            </Note>
          )}
          {approval.four_eyes && <Note>A person other than the caller must decide.</Note>}
          <pre class="json" tabIndex={0} role="region" aria-label="Arguments">
            <Text multiline>{approval.arguments_text ?? (approval.arguments === undefined ? absent(approval) : JSON.stringify(approval.arguments, null, 2))}</Text>
          </pre>
          {/* Also for an approval that another person has decided meanwhile. */}
          <Refused problem={problem} except={['reason', 'for']} />
          {approval.state === 'pending' && may('POST /admin/v1/tenants/{tenant}/approvals/{id}') && (
            <form onSubmit={event => event.preventDefault()}>
              <Input label="Reason" value={reason} set={setReason} fault={problem?.of('reason')} hint="For other operators. The caller sees it if the call is denied." />
              <Select label="An approval counts for" value={span} set={setSpan} options={WINDOWS} fault={problem?.of('for')} />
              <div class="actions">
                <Button kind="danger" run={() => decide('deny')}>
                  Deny
                </Button>
                <Button kind="primary" run={() => decide('approve')}>
                  Approve
                </Button>
              </div>
            </form>
          )}
        </>
      )}
    </Dialog>
  );
}
