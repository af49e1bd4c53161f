// A toolset as a form. What the form does not know stays in its last field, as JSON.
import { useEffect, useState } from 'preact/hooks';

import { call, callTagged, Problem, type Schemas } from '../api/client';
import { asProblem } from '../live';
import { go, href } from '../router';
import { tenants } from '../session';
import { Button, Input, Loading, Refused, Select, tell, useSubmit } from '../ui/controls';
import { Card, Page } from '../ui/page';

type View = Schemas['ToolsetView'];
type Members = Record<string, unknown>;

const KINDS = ['tools', 'prompts', 'resources'] as const;
const SIDES = ['include', 'exclude'] as const;
const NAMES = [['always', 'BACKEND__NAME, always'], ['unique', 'the plain name where one backend has it'], ['never', 'the plain name, always']] as const;
const DESCRIPTIONS = [['full', 'in full'], ['first_sentence', 'their first sentence']] as const;

interface Draft {
  owner: string;
  name: string;
  description: string;
  /** Patterns by `include.tools` and the like, one a line. */
  patterns: Record<string, string>;
  names: string;
  descriptions: string;
  published: string;
  search: string;
  enforce: string;
  more: string;
}

function draftOf(owner: string, name: string, document: Members = {}): Draft {
  const { name: _name, source: _source, endpoint: _endpoint, lists: _lists, description, include, exclude, names, descriptions, published, search, enforce, ...more } = document;
  const sides: Record<string, unknown> = { include, exclude };
  // Such as `classes`.
  const unknown = SIDES.map(side => {
    const members = Object.entries((sides[side] ?? {}) as Members);
    return [side, Object.fromEntries(members.filter(([member]) => !(KINDS as readonly string[]).includes(member)))] as const;
  });
  const further = { ...more, ...Object.fromEntries(unknown.filter(([, members]) => Object.keys(members).length)) };
  const patterns = SIDES.flatMap(side => KINDS.map(kind => [`${side}.${kind}`, (((sides[side] as Members | undefined)?.[kind] ?? []) as string[]).join('\n')] as const));
  const flag = (value: unknown) => (value ? 'yes' : 'no');
  return {
    owner,
    name,
    description: String(description ?? ''),
    patterns: Object.fromEntries(patterns),
    names: String(names ?? 'always'),
    descriptions: String(descriptions ?? 'full'),
    published: flag(published),
    search: flag(search),
    enforce: flag(enforce),
    more: Object.keys(further).length ? JSON.stringify(further, null, 2) : '',
  };
}

function documentOf(draft: Draft): Members {
  let more: Members;
  try {
    more = draft.more.trim() ? JSON.parse(draft.more) : {};
  } catch (error) {
    throw new Problem(0, 'page', 'The further members are not JSON.', [{ field: 'more', detail: `is not JSON: ${(error as Error).message}` }]);
  }
  const document: Members = { ...more, names: draft.names, descriptions: draft.descriptions };
  if (draft.description) document['description'] = draft.description;
  for (const side of SIDES) {
    const selected = KINDS.map(kind => [kind, (draft.patterns[`${side}.${kind}`] ?? '').split('\n').map(line => line.trim()).filter(Boolean)] as const);
    const given = selected.filter(([, patterns]) => patterns.length);
    if (given.length) document[side] = { ...((more[side] ?? {}) as Members), ...Object.fromEntries(given) };
  }
  for (const flag of ['published', 'search', 'enforce'] as const) document[flag] = draft[flag] === 'yes';
  return document;
}

export function ToolsetForm({ owner, name }: { owner: string; name?: string }) {
  const [draft, setDraft] = useState<Draft | undefined>(name ? undefined : draftOf(owner, ''));
  const [tag, setTag] = useState<string | null>(null);
  const [unread, setUnread] = useState<Problem>();
  const { problem, isSending, submit } = useSubmit(async () => {
    if (!draft) return;
    const headers: Record<string, string> = name ? (tag ? { 'if-match': tag } : {}) : { 'if-none-match': '*' };
    await call('PUT /admin/v1/tenants/{tenant}/toolsets/{toolset}', { params: { tenant: draft.owner, toolset: draft.name }, body: documentOf(draft), headers });
    tell(`${draft.name} is stored.`);
    go(href('toolsets', [draft.owner, draft.name]));
  });
  useEffect(() => {
    if (!name) return;
    callTagged<View>('GET /admin/v1/tenants/{tenant}/toolsets/{toolset}', { params: { tenant: owner, toolset: name } }).then(
      ({ value, tag: found }) => {
        setTag(found);
        setDraft(draftOf(owner, name, value as unknown as Members));
      },
      error => setUnread(asProblem(error)),
    );
  }, [owner, name]);

  const title = name ? `Edit ${name}` : 'Add a toolset';
  const back = name ? { href: href('toolsets', [owner, name]), title: name } : { href: href('toolsets'), title: 'Toolsets' };
  if (!draft) return <Page title={title} back={back} problem={unread}>{unread ? null : <Loading />}</Page>;

  const set = (member: Exclude<keyof Draft, 'patterns'>) => (value: string) => setDraft({ ...draft, [member]: value });
  const fault = (field: string) => problem?.of(field);
  const patterns = SIDES.flatMap(side => KINDS.map(kind => `${side}.${kind}`));
  const yesOrNo = [['no', 'no'], ['yes', 'yes']] as const;
  return (
    <Page title={title} back={back} lead="The broker checks the whole document, and stores it only without a fault.">
      <Card>
        <form onSubmit={submit}>
          <div class="pair">
            <Select label="Tenant" value={draft.owner} set={set('owner')} options={(name ? [draft.owner] : tenants.value).map(one => [one, one] as const)} fault={fault('tenant')} />
            <Input label="Name" value={draft.name} set={name ? () => {} : set('name')} required placeholder="research" fault={fault('toolset') ?? fault('name')} hint="Small letters, digits and hyphens. Its endpoint is /mcp/t/NAME." />
          </div>
          <Input label="Description" value={draft.description} set={set('description')} fault={fault('description')} hint="Clients get it first among the instructions." />
          {SIDES.map(side => (
            <fieldset key={side}>
              <legend>{side === 'include' ? 'Includes' : 'Excludes'}</legend>
              <div class="pair">
                {KINDS.map(kind => {
                  const field = `${side}.${kind}`;
                  const change = (value: string) => setDraft({ ...draft, patterns: { ...draft.patterns, [field]: value } });
                  const label = side === 'include' ? kind[0]?.toUpperCase() + kind.slice(1) : `Not these ${kind}`;
                  return <Input key={kind} label={label} value={draft.patterns[field] ?? ''} set={change} lines={3} code placeholder="files/read_*" fault={fault(field)} hint="BACKEND/PATTERN, one per line." />;
                })}
              </div>
            </fieldset>
          ))}
          <div class="pair">
            <Select label="Names" value={draft.names} set={set('names')} options={NAMES} fault={fault('names')} />
            <Select label="Descriptions of tools" value={draft.descriptions} set={set('descriptions')} options={DESCRIPTIONS} fault={fault('descriptions')} />
          </div>
          <div class="pair">
            <Select label="Published" value={draft.published} set={set('published')} options={yesOrNo} fault={fault('published')} hint="Only a published toolset has an endpoint." />
            <Select label="Search instead of lists" value={draft.search} set={set('search')} options={yesOrNo} fault={fault('search')} />
            <Select label="Enforced" value={draft.enforce} set={set('enforce')} options={yesOrNo} fault={fault('enforce')} hint="Limits the callers of “bind” to this toolset at every endpoint." />
          </div>
          <Input label="Further members" value={draft.more} set={set('more')} lines={8} code fault={fault('more')} hint="JSON with aliases, overrides, bind, description_chars_max and output_schemas, as the admin API takes them." />
          <Refused problem={problem} except={['tenant', 'toolset', 'name', 'description', ...patterns, 'names', 'descriptions', 'published', 'search', 'enforce', 'more']} />
          <div class="actions">
            <a class="button" href={back.href}>
              Cancel
            </a>
            <Button kind="primary" submit isSending={isSending}>
              {isSending ? 'Storing…' : 'Store the toolset'}
            </Button>
          </div>
        </form>
      </Card>
    </Page>
  );
}
