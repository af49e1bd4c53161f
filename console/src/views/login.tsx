// Sign-in with an operator's token, or at an issuer.
import { useEffect, useState } from 'preact/hooks';

import { jsonFrom, problemOf, send } from '../api/client';
import { useLive } from '../live';
import { route } from '../router';
import { loginNote, signIn } from '../session';
import { Button, Failed, Input, Note, useSubmit } from '../ui/controls';
import { Brand } from '../ui/shell';

/** View to which a failed login at an issuer leads. */
const FAILED = 'login-failed';

/** Sends the browser to an issuer, which sends it back to the console. */
async function goToIssuer(issuer: string): Promise<void> {
  const redirect_uri = new URL('callback', document.baseURI).href;
  const response = await send('POST', 'console/logins', { body: { issuer, redirect_uri } });
  if (!response.ok) throw await problemOf(response);
  const { url } = await jsonFrom<{ url: string }>(response);
  location.assign(url);
}

/** Returns the names of issuers: their hosts, or their addresses where two have one host. */
function namesOf(issuers: readonly string[]): (readonly [string, string])[] {
  const hosts = issuers.map(issuer => new URL(issuer).host);
  return issuers.map((issuer, at) => {
    const host = hosts[at] ?? issuer;
    return [issuer, hosts.filter(other => other === host).length > 1 ? issuer.replace(/^https?:\/\//, '') : host] as const;
  });
}

/** `isAgain`: over a view of a login that has ended. */
export function Login({ isAgain = false }: { isAgain?: boolean }) {
  const [token, setToken] = useState('');
  // Under `hasEnded`, values are not asked for.
  const issuers = useLive<string[]>(async () => {
    const response = await send('GET', 'console/logins');
    if (!response.ok) throw await problemOf(response);
    return (await jsonFrom<{ issuers: string[] }>(response)).issuers;
  }, []);
  useEffect(() => {
    if (!isAgain) document.title = 'Sign in · mcp-broker';
  }, []);
  const { problem, isSending, submit } = useSubmit(async () => {
    await signIn(token);
    if (route.value.view === FAILED) location.hash = '#/overview';
  });
  const hasFailed = route.value.view === FAILED;
  const Title = isAgain ? 'h2' : 'h1';
  const Frame = isAgain ? 'div' : 'main';
  return (
    <Frame class="login">
      <div class="brand">
        <Brand />
      </div>
      <form class="card" onSubmit={submit}>
        <Title>Sign in to the console</Title>
        {loginNote.value && !problem && <Note tone="warn">{loginNote.value}</Note>}
        {hasFailed && !problem && <Note tone="bad">The login at the issuer did not succeed. The log of the broker has the reason.</Note>}
        {isAgain && (
          <p class="soft">
            What you entered is kept until you sign in. To sign in at an issuer,{' '}
            <a href="./" target="_blank" rel="noopener">
              open the console in a new tab
            </a>
            , sign in there, and come back to this tab.
          </p>
        )}
        {issuers.problem && (
          <>
            <Failed problem={issuers.problem} what="Logins at issuers are" />
            <Button run={issuers.again}>Try again</Button>
          </>
        )}
        {namesOf(issuers.value ?? []).map(([issuer, name]) => (
          <Button key={issuer} kind="primary" run={() => goToIssuer(issuer)}>
            Sign in at {name}
          </Button>
        ))}
        {Boolean(issuers.value?.length) && <p class="or">or</p>}
        <Input
          label="Operator token"
          type="password"
          value={token}
          set={setToken}
          required
          autofocus
          code
          autocomplete="current-password"
          fault={problem?.message}
          hint="The admin token, or the token of an operator."
        />
        <Button kind={issuers.value?.length ? undefined : 'primary'} submit isSending={isSending}>
          {isSending ? 'Signing in…' : 'Sign in'}
        </Button>
      </form>
      <footer>
        An admin creates operators with <code>mcp-broker operator create</code>.
      </footer>
    </Frame>
  );
}
