// Buttons, fields, dialogs and notes.
import { signal } from '@preact/signals';
import type { ComponentChildren, TargetedInputEvent } from 'preact';
import { useEffect, useId, useRef, useState } from 'preact/hooks';

import { asProblem, isPartOf, type Problem } from '../api/client';
import { Icon, type IconName } from './icons';
import { plain, Text, Time } from './text';

interface ButtonProps {
  children: ComponentChildren;
  icon?: IconName;
  kind?: 'primary' | 'danger' | 'quiet';
  /** Runs at a click. The button waits for it. */
  run?: () => unknown;
  submit?: boolean;
  disabled?: boolean;
  /** True while its form is sent: it does nothing, and keeps the focus. */
  isSending?: boolean;
  label?: string;
  pressed?: boolean;
  expanded?: boolean;
}

export function Button({ children, icon, kind, run, submit, disabled, isSending = false, label, pressed, expanded }: ButtonProps) {
  const [isRunning, setBusy] = useState(false);
  const busy = isRunning || isSending;
  const press = async () => {
    if (busy) return;
    try {
      const running = run?.();
      if (!(running instanceof Promise)) return;
      setBusy(true);
      await running;
    } catch (error) {
      tell(asProblem(error).message, true);
    } finally {
      setBusy(false);
    }
  };
  return (
    <button
      type={submit ? 'submit' : 'button'}
      class={`button ${kind ?? ''}`}
      disabled={disabled}
      aria-busy={busy}
      aria-disabled={busy || undefined} // a disabled button would lose the focus
      aria-label={label && plain(label)}
      aria-pressed={pressed}
      aria-expanded={expanded}
      title={label && plain(label)}
      onClick={run ? press : undefined}
    >
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

interface FieldProps {
  label: string;
  children: (field: { id: string; 'aria-describedby': string | undefined; 'aria-invalid': boolean }) => ComponentChildren;
  hint?: ComponentChildren;
  fault?: string | undefined;
  required?: boolean;
}

/** A field with its label, a hint, and what the broker found wrong with it. */
export function Field({ label, children, hint, fault, required }: FieldProps) {
  const id = useId();
  const described = [hint && `${id}-hint`, fault && `${id}-fault`].filter(Boolean).join(' ') || undefined;
  return (
    <div class={`field ${fault ? 'faulty' : ''}`}>
      <label for={id}>
        <Text>{label}</Text>
        {required && <span class="faint"> (required)</span>}
      </label>
      {children({ id, 'aria-describedby': described, 'aria-invalid': Boolean(fault) })}
      {hint && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
      {fault && (
        <p class="fault" id={`${id}-fault`}>
          <Text>{fault}</Text>
        </p>
      )}
    </div>
  );
}

interface InputProps extends Omit<FieldProps, 'children'> {
  value: string;
  set: (value: string) => void;
  type?: 'text' | 'password' | 'number' | 'search' | 'url';
  placeholder?: string;
  lines?: number;
  code?: boolean;
  autofocus?: boolean;
  autocomplete?: string;
}

export function Input({ value, set, type = 'text', placeholder, lines, code, autofocus, autocomplete = 'off', ...field }: InputProps) {
  const changed = (event: TargetedInputEvent<HTMLInputElement | HTMLTextAreaElement>) => set(event.currentTarget.value);
  const shared = { value, placeholder, onInput: changed, spellcheck: false, autocapitalize: 'off' as const, class: code ? 'code' : '' };
  return (
    <Field {...field}>
      {given =>
        lines ? (
          <textarea {...given} {...shared} rows={lines} required={field.required} />
        ) : (
          <input {...given} {...shared} type={type as 'text'} required={field.required} autofocus={autofocus} autocomplete={autocomplete} />
        )
      }
    </Field>
  );
}

interface SelectProps extends Omit<FieldProps, 'children'> {
  value: string;
  set: (value: string) => void;
  options: readonly (readonly [string, string])[];
}

export function Select({ value, set, options, ...field }: SelectProps) {
  return (
    <Field {...field}>
      {given => (
        <select {...given} value={value} onChange={event => set(event.currentTarget.value)}>
          {options.map(([name, shown]) => (
            <option key={name} value={name}>
              {plain(shown)}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

/** A select or an input in a toolbar, whose label is only read out. */
export function Filter({ label, value, set, options }: { label: string; value: string; set: (value: string) => void; options?: readonly (readonly [string, string])[] }) {
  return options ? (
    <select aria-label={label} value={value} onChange={event => set(event.currentTarget.value)}>
      {options.map(([name, shown]) => (
        <option key={name} value={name}>
          {plain(shown)}
        </option>
      ))}
    </select>
  ) : (
    <span class="search">
      <Icon name="search" />
      <input type="search" aria-label={label} placeholder={label} value={value} onInput={event => set(event.currentTarget.value)} />
    </span>
  );
}

const TONES: Record<string, string> = {
  ready: 'good', published: 'good', closed: 'good', ok: 'good', allow: 'good', connected: 'good', completed: 'good', trusted: 'good', approved: 'good', verified: 'good',
  degraded: 'warn', half_open: 'warn', connecting: 'warn', parked: 'warn', challenge: 'warn', approve: 'warn', reconnect: 'warn', pending: 'warn',
  input_required: 'warn', timeout: 'warn', draining: 'warn', starting: 'warn', changed: 'warn', shadow: 'warn', tool_error: 'warn', cancelled: 'warn',
  failed: 'bad', open: 'bad', refused: 'bad', error: 'bad', deny: 'bad', denied: 'bad', blocked: 'bad', store_unavailable: 'bad', broken: 'bad',
  working: 'info', used: 'info', enforce: 'info',
};

/** A state as a word with a sign: colour is never its only mark. */
export function State({ children }: { children: string }) {
  const tone = TONES[children] ?? 'none';
  return <span class={`state ${tone}`}>{children.replaceAll('_', ' ')}</span>;
}

export function Tag({ children, tone }: { children: ComponentChildren; tone?: string }) {
  return <span class={`tag ${tone ?? ''}`}>{children}</span>;
}

export function Note({ children, tone = 'info' }: { children: ComponentChildren; tone?: 'info' | 'warn' | 'bad' | 'good' }) {
  return (
    <div class={`note ${tone}`} role={tone === 'bad' ? 'alert' : undefined}>
      {children}
    </div>
  );
}

/** A refusal, with each field at fault. */
export function Refused({ problem, except = [] }: { problem: Problem | undefined; except?: readonly string[] }) {
  if (!problem) return null;
  const others = problem.faults.filter(fault => !except.some(field => isPartOf(fault.field, field)));
  const areMany = problem.faults.length > 1;
  // What the broker says about one fault has its detail already.
  const listed = areMany ? others : others.filter(fault => !problem.message.includes(fault.detail));
  return (
    <Note tone="bad">
      {areMany ? <strong>{problem.faults.length} fields are not accepted.</strong> : <Text multiline>{problem.message}</Text>}
      {listed.length > 0 && (
        <ul>
          {listed.map(fault => (
            <li key={fault.field}>
              <code>
                <Text>{fault.field || 'body'}</Text>
              </code>{' '}
              <Text>{fault.detail}</Text>
            </li>
          ))}
        </ul>
      )}
    </Note>
  );
}

interface FailedProps {
  problem: Problem | undefined;
  /** What is not known because of it. */
  what?: string;
  tone?: 'warn' | 'bad';
}

/** Why a value is not known, or of when the older one is that stays on the page. */
export function Failed({ problem, what, tone = 'bad' }: FailedProps) {
  if (!problem) return null;
  return (
    <Note tone={tone}>
      {what && !problem.knownAt && <strong>{what} unknown: </strong>}
      <Text multiline>{problem.message}</Text>
      {problem.knownAt && (
        <p>
          <strong>Not current:</strong> shown as of <Time at={problem.knownAt.toISOString()} />.
        </p>
      )}
    </Note>
  );
}

/** Sends a form, once at a time. After a refusal, the first field at fault has the focus. */
export function useSubmit(act: () => Promise<unknown>) {
  const [problem, setProblem] = useState<Problem>();
  const [isSending, setSending] = useState(false);
  // A second click may come before the button shows that the first is under way.
  const isUnderWay = useRef(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (isUnderWay.current) return;
    const form = event.currentTarget as HTMLFormElement;
    isUnderWay.current = true;
    setSending(true);
    setProblem(undefined);
    try {
      await act();
    } catch (error) {
      setProblem(asProblem(error));
      requestAnimationFrame(() => form.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus());
    }
    isUnderWay.current = false;
    setSending(false);
  };
  return { problem, isSending, submit };
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="title">{title}</p>
      {children}
    </div>
  );
}

export function Loading() {
  return (
    <div class="loading" role="status">
      <span class="hidden">Loading</span>
      <i />
      <i />
      <i />
    </div>
  );
}

export function Copy({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [shown, setShown] = useState('');
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setShown('Copied');
    } catch {
      tell('The browser does not let the page copy. Select the text and copy it.', true);
      return;
    }
    setTimeout(() => setShown(''), 1_500);
  };
  return (
    <Button kind="quiet" icon={shown ? 'check' : 'copy'} run={copy}>
      {shown || label}
    </Button>
  );
}

/** Ids of the dialogs that are open, the topmost last. */
const dialogs = signal<readonly string[]>([]);

/** A dialog over the page. Escape closes it, and the focus returns to where it was. */
export function Dialog({ title, children, close, wide }: { title: string; children: ComponentChildren; close: () => void; wide?: boolean }) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    dialogs.value = [...dialogs.peek(), id];
    return () => {
      element.current?.close();
      dialogs.value = dialogs.peek().filter(other => other !== id);
      // The row of a removed entry is away, with its button.
      const next = before instanceof HTMLElement && before.isConnected ? before : document.getElementById('main');
      next?.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? 'wide' : ''}
      aria-labelledby={id}
      onCancel={event => {
        event.preventDefault();
        close();
      }}
    >
      <header>
        <h2 id={id}>
          <Text>{title}</Text>
        </h2>
        <Button kind="quiet" icon="close" label="Close" run={close}>
          {null}
        </Button>
      </header>
      <div class="body">{children}</div>
      <Told at={id} />
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  children: ComponentChildren;
  /** Text of the button that does it. */
  act: string;
  run: () => Promise<unknown>;
  close: () => void;
  wide?: boolean;
}

/** Asks before something that cannot be taken back. */
export function Confirm({ title, children, act, run, close, wide }: ConfirmProps) {
  const { problem, isSending, submit } = useSubmit(async () => {
    await run();
    close();
  });
  return (
    <Dialog title={title} close={close} wide={wide}>
      <form onSubmit={submit}>
        {children}
        <Refused problem={problem} />
        <div class="actions">
          <Button run={close}>Keep</Button>
          <Button kind="danger" submit isSending={isSending}>
            {act}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

/** A secret that is shown once. */
export function Secret({ title, text, close, children }: { title: string; text: string; close: () => void; children?: ComponentChildren }) {
  return (
    <Dialog title={title} close={close}>
      <Note tone="warn">Copy it now. It is not shown again.</Note>
      <pre class="secret" tabIndex={0}>
        {text}
      </pre>
      {children}
      <div class="actions">
        <Copy text={text} />
        <Button kind="primary" run={close}>
          Done
        </Button>
      </div>
    </Dialog>
  );
}

const told = signal<{ text: string; bad: boolean; id: number } | null>(null);
let count = 0;

/** Tells the result of an action, for some seconds. */
export function tell(text: string, bad = false): void {
  const id = ++count;
  told.value = { text, bad, id };
  setTimeout(() => told.value?.id === id && (told.value = null), bad ? 9_000 : 4_000);
}

/** Shows what was told, in the topmost dialog or, without one, in the page: what is below an open dialog is neither reached nor read out. */
export function Told({ at }: { at?: string }) {
  const value = dialogs.value.at(-1) === at ? told.value : null;
  return (
    <div class="told" role="status" aria-live="polite">
      {value && (
        <p class={value.bad ? 'bad' : 'good'}>
          <Text>{value.text}</Text>
        </p>
      )}
    </div>
  );
}
