// One backend: its state, what went wrong and what to do, its settings, and what an operator can do with it.
import { useState } from 'preact/hooks';

import { call, type Schemas } from '../api/client';
import { useLive } from '../live';
import { go, href } from '../router';
import { may } from '../session';
import { Button, Confirm, Loading, Note, State, Tag, tell } from '../ui/controls';
import { Card, Facts, Json, Page } from '../ui/page';
import { Text, Time, milliseconds, number } from '../ui/text';
import { Pins } from './pins';

type View = Schemas['BackendView'];

/** What an operator can do about an error, by its words. */
const ADVICE: readonly (readonly [RegExp, string])[] = [
  [/is not allowed|refused address|egress/i, 'The broker may not connect to this address. An admin can allow it in egress.allow of the configuration.'],
  [/\bdns\b|resolve|lookup|name or service/i, 'The host name does not resolve from the broker. Check its spelling and the DNS of the broker.'],
  [/certificate|\btls\b/i, 'The broker does not trust the certificate. Set tls.ca_file of the backend, or correct the server’s certificate.'],
  [/\b(401|403)\b|unauthor|forbidden|invalid_client|access token/i, 'The server refuses the credential. Edit the backend and enter it again.'],
  [/\b(404|405)\b/i, 'The server answers, but MCP is not at this path. Check the path of the URL.'],
  [/\bcommand\b|\bexit|signal|no such file|spawn|permission denied/i, 'The program does not start or ends early. Check command, arguments and environment, and run it by hand.'],
  [/timeout|timed out|in time|too long/i, 'The server does not answer in time. Check its load, or set a longer timeouts.initialize.'],
  [/could not connect|connection refused|unreachable|no route/i, 'Nothing listens at the address. Check the address, and that the server runs.'],
];

function adviceFor(error: string): string | undefined {
  return ADVICE.find(([words]) => words.test(error))?.[1];
}

export function BackendDetail({ owner, name }: { owner: string; name: string }) {
  const params = { tenant: owner, backend: name };
  const live = useLive<View>(() => call('GET /admin/v1/tenants/{tenant}/backends/{backend}', { params }), [owner, name], 3_000);
  const [asked, setAsked] = useState<'remove' | 'hold'>();
  const view = live.value;
  const back = { href: href('backends'), title: 'Backends' };
  if (!view) {
    return (
      <Page title={name} back={back} problem={live.problem}>
        {live.problem ? null : <Loading />}
      </Page>
    );
  }
  const isHeld = view.breaker?.reason === 'operator';
  const mayOperate = may('POST /admin/v1/tenants/{tenant}/backends/{backend}/probe');
  const mayWrite = may('PUT /admin/v1/tenants/{tenant}/backends/{backend}') && view.source === 'api';
  const probe = async () => {
    const probed = await call<View>('POST /admin/v1/tenants/{tenant}/backends/{backend}/probe', { params });
    tell(probed.state === 'ready' ? `${name} answers.` : `${name} is ${probed.state}.`, probed.state !== 'ready');
    await live.again();
  };
  const setBreaker = async (state: 'open' | 'closed') => {
    await call('POST /admin/v1/tenants/{tenant}/backends/{backend}/breaker', { params, body: { state } });
    tell(state === 'open' ? 'The breaker is held open.' : 'The breaker is released.');
    await live.again();
  };
  const advice = view.last_error && adviceFor(view.last_error);
  return (
    <Page
      title={name}
      back={back}
      problem={live.problem}
      lead={
        <>
          Backend of tenant {owner}
          {view.source === 'config' && ', from the configuration file'}
        </>
      }
      actions={
        <>
          {mayOperate && (
            <Button icon="refresh" run={probe}>
              Test the connection
            </Button>
          )}
          {mayOperate &&
            (isHeld ? (
              <Button run={() => setBreaker('closed')}>Release the breaker</Button>
            ) : (
              <Button run={() => setAsked('hold')}>Hold the breaker open</Button>
            ))}
          {mayWrite && (
            <a class="button" href={href('backends', [owner, name], { edit: '1' })}>
              Edit
            </a>
          )}
          {mayWrite && (
            <Button kind="danger" run={() => setAsked('remove')}>
              Remove
            </Button>
          )}
        </>
      }
    >
      {view.last_error && (
        <Note tone={view.state === 'ready' ? 'warn' : 'bad'}>
          <strong>Last error: </strong>
          <Text>{view.last_error}</Text>
          {advice && <p class="advice">{advice}</p>}
          {view.next_attempt_in_ms != null && (
            <p>
              {number(view.failed_attempts ?? 0)} attempts in a row have failed. The next one is in {milliseconds(view.next_attempt_in_ms)}.
            </p>
          )}
        </Note>
      )}
      <div class="cards">
        <Card title="State">
          <Facts>
            {[
              ['State', <State>{view.state}</State>],
              view.breaker && ['Breaker', <State>{view.breaker.state}</State>],
              view.breaker?.reason && ['Because of', view.breaker.reason.replaceAll('_', ' ')],
              ['Latency', milliseconds(view.latency_ms)],
              ['Calls in flight', `${number(view.calls_in_flight ?? 0)} of ${number(view.calls_max ?? 0)}`],
              ['Calls waiting', number(view.calls_queued ?? 0)],
              ['Links', number(view.links)],
              ['Replica', <span class="mono">{view.replica}</span>],
            ]}
          </Facts>
        </Card>
        <Card
          title="Server"
          actions={
            may('GET /admin/v1/tenants/{tenant}/catalog') && <a href={href('catalog', [owner], { backend: name })}>Show in the catalog</a>
          }
        >
          <Facts>
            {[
              ['Name', <Text>{[view.server_name, view.server_version].filter(Boolean).join(' ') || 'unknown'}</Text>],
              ['Protocol', view.protocol_version ?? 'unknown'],
              ['Tools', number(view.tools)],
              ['Prompts', number(view.prompts)],
              ['Resources', number(view.resources)],
              ['Templates', number(view.resource_templates)],
              view.sandbox && ['Sandbox', <Tag tone={view.sandbox === 'off' ? 'warn' : 'good'}>{view.sandbox}</Tag>],
            ]}
          </Facts>
          {Boolean(view.sandbox_missing?.length) && <Note tone="warn">Missing on this host for a better sandbox: {view.sandbox_missing?.join(', ')}</Note>}
          {Object.keys(view.unchecked_tools ?? {}).length > 0 && (
            <Note tone="warn">
              Arguments of these tools are not checked:
              <ul>
                {Object.entries(view.unchecked_tools ?? {}).map(([tool, reason]) => (
                  <li key={tool}>
                    <Text>{`${tool}: ${reason}`}</Text>
                  </li>
                ))}
              </ul>
            </Note>
          )}
        </Card>
        {may('GET /admin/v1/tenants/{tenant}/backends/{backend}/pins') && <Pins owner={owner} backend={name} />}
        <Card title="Settings" wide>
          <p class="soft">
            {view.updated_at ? (
              <>
                Changed <Time at={view.updated_at} />. Secrets are not shown.
              </>
            ) : (
              'Secrets are not shown.'
            )}
          </p>
          <Json value={view.settings} label="Settings" />
        </Card>
      </div>
      {asked === 'remove' && (
        <Confirm
          title={`Remove ${name}?`}
          act="Remove the backend"
          close={() => setAsked(undefined)}
          run={async () => {
            await call('DELETE /admin/v1/tenants/{tenant}/backends/{backend}', { params });
            tell(`${name} is removed.`);
            go(href('backends'));
          }}
        >
          <p>Its tools disappear from the endpoint of tenant {owner}. Calls in flight end with an error.</p>
        </Confirm>
      )}
      {asked === 'hold' && (
        <Confirm title={`Hold the breaker of ${name} open?`} act="Hold it open" close={() => setAsked(undefined)} run={() => setBreaker('open')}>
          <p>No replica sends calls to it until an operator releases the breaker.</p>
        </Confirm>
      )}
    </Page>
  );
}
