// The console's entry: login, then the view of the address.
import './style.css';

import { render, type ComponentType } from 'preact';
import { useEffect, useErrorBoundary, useRef, useState } from 'preact/hooks';

import { href, route } from './router';
import { hasEnded, may, operator, start, startProblem } from './session';
import { Button, Empty, Failed, Loading, Note } from './ui/controls';
import { Page } from './ui/page';
import { GROUPS, Shell } from './ui/shell';
import { Text } from './ui/text';
import { Login } from './views/login';
import { Overview } from './views/overview';

type View = ComponentType;

/** Views beyond the first one are fetched when they are opened. */
const VIEWS: Record<string, () => Promise<View>> = {
  overview: async () => Overview,
  backends: async () => (await import('./views/backends')).Backends,
  catalog: async () => (await import('./views/catalog')).Catalog,
  toolsets: async () => (await import('./views/toolsets')).ToolsetsView,
  try: async () => (await import('./views/try')).Try,
  policy: async () => (await import('./views/policy')).PolicyView,
  connections: async () => (await import('./views/connections')).Connections,
  sessions: async () => (await import('./views/sessions')).Sessions,
  tasks: async () => (await import('./views/tasks')).Tasks,
  approvals: async () => (await import('./views/approvals')).Approvals,
  activity: async () => (await import('./views/activity')).Activity,
  audit: async () => (await import('./views/audit')).Audit,
  keys: async () => (await import('./views/keys')).Keys,
  operators: async () => (await import('./views/operators')).Operators,
  setup: async () => (await import('./views/setup')).Setup,
};

const ENTRIES = GROUPS.flatMap(([, entries]) => entries);

function Current() {
  const { view } = route.value;
  const [loaded, setLoaded] = useState<{ view: string; part: View | null; failed?: boolean }>();
  const entry = ENTRIES.find(one => one.view === view);
  useEffect(() => {
    let over = false;
    const show = (part: View | null, failed = false) => !over && setLoaded({ view, part, failed });
    const load = Object.hasOwn(VIEWS, view) ? VIEWS[view] : undefined;
    if (load) load().then(part => show(part), () => show(null, true));
    else show(null);
    return () => {
      over = true;
    };
  }, [view]);
  if (!entry) {
    const first = ENTRIES.find(one => may(one.needs));
    return (
      <Page title="Nothing here">
        <Empty title="This view does not exist.">{first && <a href={href(first.view)}>{first.title}</a>}</Empty>
      </Page>
    );
  }
  if (!may(entry.needs)) {
    const first = ENTRIES.find(one => may(one.needs));
    return (
      <Page title={entry.title}>
        <Empty title={`The role ${operator.value?.role} has no access to this view.`}>
          {first && <a href={href(first.view)}>Go to {first.title}</a>}
        </Empty>
      </Page>
    );
  }
  if (loaded?.view !== view) return <Loading />;
  if (loaded.failed) {
    return (
      <Page title={entry.title}>
        <Note tone="bad">
          This part of the console could not be loaded. The broker may have been updated: <a href="">load the page again</a>.
        </Note>
      </Page>
    );
  }
  const Part = loaded.part;
  return Part ? <Shown key={view} title={entry.title} part={Part} /> : <Loading />;
}

/** A view. If it cannot show what it got, it says so, and another address begins again. */
function Shown({ title, part: Part }: { title: string; part: View }) {
  const [error, again] = useErrorBoundary();
  const address = route.value;
  useEffect(() => {
    if (error) again();
  }, [address]);
  if (!error) return <Part />;
  return (
    <Page title={title}>
      <Note tone="bad">
        <p>This view cannot show the data from the broker.</p>
        <Text multiline>{String(error)}</Text>
      </Note>
      <div class="actions">
        <Button run={again}>Try again</Button>
      </div>
    </Page>
  );
}

/** Covers the view of a login that has ended. What was entered in the view is still there after a sign-in. */
function SignInAgain() {
  const element = useRef<HTMLDialogElement>(null);
  const show = () => element.current?.isConnected && !element.current.open && element.current.showModal();
  useEffect(() => {
    show();
  }, []);
  return (
    <dialog ref={element} class="ended" aria-label="Sign in again" onCancel={event => event.preventDefault()} onClose={show}>
      <Login isAgain />
    </dialog>
  );
}

function App() {
  const who = operator.value;
  if (who === undefined && !startProblem.value) return <Loading />;
  if (who === undefined) {
    return (
      <main class="login">
        <Failed problem={startProblem.value} />
        <Button kind="primary" run={start}>
          Try again
        </Button>
      </main>
    );
  }
  if (who === null) return <Login />;
  return (
    <>
      {/* Another operator begins with empty views. */}
      <Shell key={who.name}>
        <Current />
      </Shell>
      {hasEnded.value && <SignInAgain />}
    </>
  );
}

void start().then(() => {
  // The way back from an issuer ends here.
  if (operator.value && route.value.view === 'login-failed') location.hash = href('overview');
});
render(<App />, document.getElementById('app') as HTMLElement);
