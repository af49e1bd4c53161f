// Values that follow the broker.
import { useSignal } from '@preact/signals';
import { useCallback, useEffect, useRef } from 'preact/hooks';

import { asProblem, type Problem } from './api/client';
import { hasEnded } from './session';

export interface Live<T> {
  value: T | undefined;
  problem: Problem | undefined;
  /** Asks again now. */
  again: () => Promise<void>;
}

/** The shortest pause between two requests of one value. */
export const SHORTEST_PAUSE = 2_500;

export { asProblem };

/**
 * Asks for a value, and again after each pause while the page is visible and the login is valid. Two requests are never under way together.
 * `keys` name what is asked for; a change begins from nothing. Without a pause the value is asked for once, as soon as the page
 * is visible.
 */
export function useLive<T>(ask: (old: T | undefined) => Promise<T>, keys: readonly unknown[], pause = 0): Live<T> {
  const state = useSignal<{ value: T | undefined; problem: Problem | undefined }>({ value: undefined, problem: undefined });
  const current = useRef(0);
  const knownAt = useRef<Date | undefined>(undefined);
  const asking = useRef(ask);
  asking.current = ask;

  const again = useCallback(async () => {
    const round = ++current.current;
    const old = state.peek().value;
    try {
      const value = await asking.current(old);
      if (round !== current.current) return;
      knownAt.current = new Date();
      state.value = { value, problem: undefined };
    } catch (error) {
      if (round !== current.current) return;
      // What was known stays on the page, marked as old.
      const { value } = state.peek();
      const problem = asProblem(error);
      if (value !== undefined) problem.knownAt = knownAt.current;
      state.value = { value, problem };
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
      const begun = performance.now();
      if (document.visibilityState === 'visible' && !hasEnded.peek()) {
        asked = true;
        await again();
      }
      // A long list does not keep the broker busy all the time.
      if (!over && pause) timer = setTimeout(next, Math.max(pause, SHORTEST_PAUSE, performance.now() - begun));
    };
    void next();
    const seen = () => document.visibilityState === 'visible' && (pause || !asked) && void next();
    document.addEventListener('visibilitychange', seen);
    let wasEnded = false;
    const unfollow = hasEnded.subscribe(ended => {
      const isBack = wasEnded && !ended;
      wasEnded = ended;
      // A value that is asked for once was perhaps refused.
      if (isBack && (pause || !asked || state.peek().problem)) void next();
    });
    return () => {
      over = true;
      current.current++;
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', seen);
      unfollow();
    };
  }, keys);

  return { ...state.value, again };
}
