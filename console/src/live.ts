// Values that follow the broker.
import { useSignal, type ReadonlySignal } from '@preact/signals';
import { useCallback, useEffect, useRef } from 'preact/hooks';

import { Problem } from './api/client';

export interface Live<T> {
  value: T | undefined;
  problem: Problem | undefined;
  /** Asks again now. */
  again: () => Promise<void>;
}

/** The shortest pause between two requests of one value. */
export const SHORTEST_PAUSE = 2_500;

export function asProblem(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, 'page', String(error), []);
}

/**
 * Asks for a value, and again after each pause while the page is visible. Two requests are never under way together.
 * `keys` name what is asked for; a change begins from nothing. Without a pause the value is asked for once, as soon as the page
 * is visible.
 */
export function useLive<T>(ask: (old: T | undefined) => Promise<T>, keys: readonly unknown[], pause = 0): Live<T> {
  const state = useSignal<{ value: T | undefined; problem: Problem | undefined }>({ value: undefined, problem: undefined });
  const current = useRef(0);
  const asking = useRef(ask);
  asking.current = ask;

  const again = useCallback(async () => {
    const round = ++current.current;
    const old = state.peek().value;
    try {
      const value = await asking.current(old);
      if (round === current.current) state.value = { value, problem: undefined };
    } catch (error) {
      // What was known stays on the page, marked as old.
      if (round === current.current) state.value = { value: state.peek().value, problem: asProblem(error) };
    }
  }, []);

  useEffect(() => {
    state.value = { value: undefined, problem: undefined };
    let timer: ReturnType<typeof setTimeout> | undefined;
    let over = false;
    let asked = false;
    const next = async () => {
      clearTimeout(timer);
      if (over) return;
      if (document.visibilityState === 'visible') {
        asked = true;
        await again();
      }
      if (!over && pause) timer = setTimeout(next, Math.max(pause, SHORTEST_PAUSE));
    };
    void next();
    const seen = () => document.visibilityState === 'visible' && (pause || !asked) && void next();
    document.addEventListener('visibilitychange', seen);
    return () => {
      over = true;
      current.current++;
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', seen);
    };
  }, keys);

  return { ...state.value, again };
}

/** Returns a signal's value in a component that follows it. */
export function follow<T>(signal: ReadonlySignal<T>): T {
  return signal.value;
}
