// Icons as lines on a grid of 24.
const PATHS = {
  overview: 'M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-3H4zM14 7h6V4h-6z',
  backends: 'M4 5h16v6H4zM4 13h16v6H4zM8 8h.01M8 16h.01',
  catalog: 'M5 4h5v16H5zM10 4h4v16h-4zM15.500 4.500l3.800-1 4 15.500-3.800 1z',
  try: 'M5 4l14 8-14 8z',
  policy: 'M12 3l8 3v6c0 4.500-3.200 7.800-8 9-4.800-1.200-8-4.500-8-9V6zM9 12l2 2 4-4',
  connections: 'M9 15l6-6M10.500 6.500l1.700-1.700a4.200 4.200 0 0 1 6 6l-1.700 1.700M13.500 17.500l-1.700 1.700a4.200 4.200 0 0 1-6-6l1.700-1.700',
  sessions: 'M8 11a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7zM2 20c0-3.300 2.700-6 6-6s6 2.700 6 6M16 4.500a3.500 3.500 0 0 1 0 6.500M22 20c0-2.800-1.800-5-4.500-5.800',
  tasks: 'M4 6l1.500 1.500L8 5M4 13l1.500 1.500L8 12M4 20l1.500 1.500L8 19M12 6h8M12 13h8M12 20h8',
  activity: 'M3 12h4l3-8 4 16 3-8h4',
  audit: 'M6 3h9l4 4v14H6zM14 3v5h5M9 13h7M9 17h7',
  keys: 'M14.500 9.500a4.500 4.500 0 1 0-4.300 4.500L12 16h2v2h2v2h4v-3.500z',
  operators: 'M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 21c0-4 3.600-7 8-7s8 3 8 7',
  setup: 'M4 5h16v14H4zM8 10l2.500 2L8 14M13 15h4',
  approvals: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM8.500 12l2.500 2.500 4.500-5',
  toolsets: 'M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM16.500 13v7M13 16.500h7',
  pins: 'M9 4h6l-1 6 3 3H7l3-3zM12 13v7',
  close: 'M6 6l12 12M18 6L6 18',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  menu: 'M4 6h16M4 12h16M4 18h16',
  sun: 'M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 3v2M12 19v2M3 12h2M19 12h2M5.600 5.600L7 7M17 17l1.400 1.400M18.400 5.600L17 7M7 17l-1.400 1.400',
  moon: 'M20 14.500A8 8 0 0 1 9.500 4 8 8 0 1 0 20 14.500z',
  plus: 'M12 5v14M5 12h14',
  check: 'M5 12.500l4.500 4.500L19 7.500',
  warning: 'M12 4l9 16H3zM12 10v4M12 17h.01',
  search: 'M10.500 17a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13zM20 20l-4.800-4.800',
  refresh: 'M20 11a8 8 0 0 0-14.300-4L4 9M4 4v5h5M4 13a8 8 0 0 0 14.300 4L20 15M20 20v-5h-5',
  out: 'M9 4H4v16h5M14 8l4 4-4 4M8 12h10',
  back: 'M15 5l-7 7 7 7',
  download: 'M12 4v11M7.500 11l4.500 4.500 4.500-4.500M4 20h16',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
