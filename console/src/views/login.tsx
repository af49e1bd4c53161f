// Sign-in with an operator's token.
import { useEffect, useState } from 'preact/hooks';

import type { Problem } from '../api/client';
import { asProblem } from '../live';
import { loginNote, signIn } from '../session';
import { Button, Input, Note } from '../ui/controls';
import { Brand } from '../ui/shell';

export function Login() {
  const [token, setToken] = useState('');
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    document.title = 'Sign in · mcp-broker';
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(undefined);
    try {
      await signIn(token);
    } catch (error) {
      setProblem(asProblem(error));
    }
    setBusy(false);
  };
  return (
    <main class="login">
      <div class="brand">
        <Brand />
      </div>
      <form class="card" onSubmit={submit}>
        <h1>Sign in to the console</h1>
        {loginNote.value && !problem && <Note tone="warn">{loginNote.value}</Note>}
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
        <Button kind="primary" submit disabled={busy}>
          {busy ? 'Signing in…' : 'Sign in'}
        </Button>
      </form>
      <footer>
        An admin creates operators with <code>mcp-broker operator create</code>.
      </footer>
    </main>
  );
}
