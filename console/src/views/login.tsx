// Sign-in with an operator's token, or at an issuer.
import { useEffect, useState } from 'preact/hooks';

import { problemOf, send, type Problem } from '../api/client';
import { asProblem, useLive } from '../live';
import { route } from '../router';
import { loginNote, signIn } from '../session';
import { Button, Input, Note } from '../ui/controls';
import { Brand } from '../ui/shell';

/** View to which a failed login at an issuer leads. */
const FAILED = 'login-failed';

/** Sends the browser to an issuer, which sends it back to the console. */
async function goToIssuer(issuer: string): Promise<void> {
  const redirect_uri = new URL('callback', document.baseURI).href;
  const response = await send('POST', 'console/logins', { body: { issuer, redirect_uri } });
  if (!response.ok) throw await problemOf(response);
  const { url } = (await response.json()) as { url: string };
  location.assign(url);
}

export function Login() {
  const [token, setToken] = useState('');
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const issuers = useLive<string[]>(async () => {
    const response = await send('GET', 'console/logins');
    return response.ok ? ((await response.json()) as { issuers: string[] }).issuers : [];
  }, []);
  useEffect(() => {
    document.title = 'Sign in · mcp-broker';
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(undefined);
    try {
      await signIn(token);
      if (route.value.view === FAILED) location.hash = '#/overview';
    } catch (error) {
      setProblem(asProblem(error));
    }
    setBusy(false);
  };
  const hasFailed = route.value.view === FAILED;
  return (
    <main class="login">
      <div class="brand">
        <Brand />
      </div>
      <form class="card" onSubmit={submit}>
        <h1>Sign in to the console</h1>
        {loginNote.value && !problem && <Note tone="warn">{loginNote.value}</Note>}
        {hasFailed && !problem && <Note tone="bad">The login at the issuer did not succeed. The log of the broker has the reason.</Note>}
        {issuers.value?.map(issuer => (
          <Button key={issuer} kind="primary" run={() => goToIssuer(issuer)}>
            Sign in at {new URL(issuer).host}
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
        <Button kind={issuers.value?.length ? undefined : 'primary'} submit disabled={busy}>
          {busy ? 'Signing in…' : 'Sign in'}
        </Button>
      </form>
      <footer>
        An admin creates operators with <code>mcp-broker operator create</code>.
      </footer>
    </main>
  );
}
