// Buttons, fields, dialogs and notes.
import { signal } from '@preact/signals';
import type { ComponentChildren, TargetedInputEvent } from 'preact';
import { useEffect, useId, useRef, useState } from 'preact/hooks';

import { isPartOf, type Problem } from '../api/client';
import { asProblem } from '../live';
import { Icon, type IconName } from './icons';
import { Text } from './text';

interface ButtonProps {
  children: ComponentChildren;
  icon?: IconName;
  kind?: 'primary' | 'danger' | 'quiet';
  /** Runs at a click. The button waits for it. */
  run?: () => unknown;
  submit?: boolean;
  disabled?: boolean;
  label?: string;
  pressed?: boolean;
}

export function Button({ children, icon, kind, run, submit, disabled, label, pressed }: ButtonProps) {
  const [busy, setBusy] = useState(false);
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
      aria-label={label}
      aria-pressed={pressed}
      title={label}
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
          {fault}
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
              {shown}
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
          {shown}
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
      {areMany ? <strong>{problem.faults.length} fields are not accepted.</strong> : problem.message}
      {listed.length > 0 && (
        <ul>
          {listed.map(fault => (
            <li key={fault.field}>
              <code>{fault.field || 'body'}</code> {fault.detail}
            </li>
          ))}
        </ul>
      )}
    </Note>
  );
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
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1_500);
  };
  return (
    <Button kind="quiet" icon={done ? 'check' : 'copy'} run={copy}>
      {done ? 'Copied' : label}
    </Button>
  );
}

/** A dialog over the page. Escape closes it, and the focus returns to where it was. */
export function Dialog({ title, children, close, wide }: { title: string; children: ComponentChildren; close: () => void; wide?: boolean }) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    return () => {
      element.current?.close();
      if (before instanceof HTMLElement) before.focus();
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
}

/** Asks before something that cannot be taken back. */
export function Confirm({ title, children, act, run, close }: ConfirmProps) {
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const sure = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await run();
      close();
    } catch (error) {
      setProblem(asProblem(error));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} close={close}>
      <form onSubmit={sure}>
        {children}
        <Refused problem={problem} />
        <div class="actions">
          <Button run={close}>Keep</Button>
          <Button kind="danger" submit disabled={busy}>
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

export function Told() {
  const { value } = told;
  return (
    <div class="told" role="status" aria-live="polite">
      {value && <p class={value.bad ? 'bad' : 'good'}>{value.text}</p>}
    </div>
  );
}
