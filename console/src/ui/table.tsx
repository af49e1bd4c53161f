// A table of any length: only the rows in sight are in the page.
import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

export interface Column<Row> {
  title: string;
  cell: (row: Row) => ComponentChildren;
  /** What the column is ordered by. Without it the column has no order. */
  by?: (row: Row) => string | number;
  width?: string;
  /** Left out on a narrow screen. */
  wide?: boolean;
  end?: boolean;
}

interface TableProps<Row> {
  label: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  id: (row: Row) => string;
  /** Height of the rows in sight. Without it the table is as long as its rows, up to 12. */
  tall?: boolean;
  /** Column and direction at the start. */
  order?: readonly [number, 1 | -1];
}

const ROW = 44;
const BEYOND = 8;

export function Table<Row>({ label, rows, columns, id, tall, order }: TableProps<Row>) {
  const [sort, setSort] = useState<readonly [number, 1 | -1] | undefined>(order);
  const sorted = useMemo(() => {
    const by = sort && columns[sort[0]]?.by;
    if (!sort || !by) return rows;
    const keyed = rows.map(row => [by(row), row] as const);
    keyed.sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0) * sort[1]);
    return keyed.map(([, row]) => row);
  }, [rows, sort, columns.length]);
  const box = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState({ top: 0, height: 600 });
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = () => setSeen({ top: element.scrollTop, height: element.clientHeight });
    look();
    element.addEventListener('scroll', look, { passive: true });
    const watch = new ResizeObserver(look);
    watch.observe(element);
    return () => {
      element.removeEventListener('scroll', look);
      watch.disconnect();
    };
  }, []);
  const first = Math.max(0, Math.floor(seen.top / ROW) - BEYOND);
  const last = Math.min(sorted.length, Math.ceil((seen.top + seen.height) / ROW) + BEYOND);
  const press = (at: number) => setSort(sort?.[0] === at ? [at, sort[1] === 1 ? -1 : 1] : [at, 1]);

  return (
    <div class={`table ${tall ? 'tall' : ''}`} ref={box} tabIndex={0} role="region" aria-label={label}>
      <table aria-rowcount={sorted.length + 1}>
        <caption class="hidden">{label}</caption>
        <colgroup>
          {columns.map(column => (
            <col key={column.title} class={column.wide ? 'wide' : ''} style={column.width ? { width: column.width } : undefined} />
          ))}
        </colgroup>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column, at) => (
              <th
                key={column.title}
                scope="col"
                class={`${column.wide ? 'wide' : ''} ${column.end ? 'end' : ''}`}
                aria-sort={sort?.[0] === at ? (sort[1] === 1 ? 'ascending' : 'descending') : undefined}
              >
                {column.by ? (
                  <button type="button" onClick={() => press(at)}>
                    {column.title}
                  </button>
                ) : (
                  column.title
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {first > 0 && <tr aria-hidden="true" class="gap" style={{ height: `${first * ROW}px` }} />}
          {sorted.slice(first, last).map((row, at) => (
            <tr key={id(row)} aria-rowindex={first + at + 2}>
              {columns.map(column => (
                <td key={column.title} class={`${column.wide ? 'wide' : ''} ${column.end ? 'end' : ''}`}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
          {last < sorted.length && <tr aria-hidden="true" class="gap" style={{ height: `${(sorted.length - last) * ROW}px` }} />}
        </tbody>
      </table>
    </div>
  );
}
