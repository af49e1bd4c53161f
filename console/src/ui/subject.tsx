// The choice of a subject, for calls and lists as that subject.
import { useEffect, useState } from 'preact/hooks';

import { callAll, type Schemas } from '../api/client';
import { useLive } from '../live';
import { may } from '../session';
import type { Subject } from '../trial';
import { Failed, Input, Select } from './controls';

type Key = Schemas['KeyView'];

const ANONYMOUS = '(anonymous)';
const OTHER = '(other)';

export function SubjectFields({ owner, set, label = 'Call as' }: { owner: string; set: (subject: Subject) => void; label?: string }) {
  const keys = useLive<Key[]>(
    async () => (may('GET /admin/v1/tenants/{tenant}/keys') ? callAll<Key>('GET /admin/v1/tenants/{tenant}/keys', 'keys', { params: { tenant: owner } }) : []),
    [owner],
  );
  const [chosen, setChosen] = useState(ANONYMOUS);
  const [draft, setDraft] = useState({ principal: '', groups: '', scopes: '' });
  useEffect(() => {
    const list = (text: string) => text.split(/[\s,]+/).filter(Boolean);
    const key = keys.value?.find(one => one.id === chosen);
    if (key) set({ principal: key.principal, key: key.id, groups: key.groups ?? [], scopes: key.scopes ?? [] });
    else if (chosen === OTHER) set({ principal: draft.principal, groups: list(draft.groups), scopes: list(draft.scopes) });
    else set({ principal: 'anonymous' });
  }, [chosen, draft, keys.value]);
  const change = (member: keyof typeof draft) => (value: string) => setDraft({ ...draft, [member]: value });
  return (
    <fieldset>
      <legend>Subject</legend>
      <Failed problem={keys.problem} what="The keys of the tenant are" tone="warn" />
      <Select
        label={label}
        value={chosen}
        set={setChosen}
        options={[[ANONYMOUS, 'a caller without a credential'], ...(keys.value ?? []).map(key => [key.id, `${key.name || key.id} (${key.principal})`] as const), [OTHER, 'another subject…']]}
        hint="The permissions of the subject apply. Its sessions, tasks and accounts are not accessible."
      />
      {chosen === OTHER && (
        <div class="pair">
          <Input label="Principal" value={draft.principal} set={change('principal')} />
          <Input label="Groups" value={draft.groups} set={change('groups')} />
          <Input label="Scopes" value={draft.scopes} set={change('scopes')} />
        </div>
      )}
    </fieldset>
  );
}
