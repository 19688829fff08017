// Package page is the look of reports that are one HTML file and need nothing else.
package page

// Style follows the reader's choice of light or dark.
const Style = `:root { color-scheme: light dark; --fg: #1c2128; --dim: #5f6b7a; --bg: #fff; --line: #d8dee4; --a: #0b63ce; --b: #c2410c; --c: #15803d;
  --d: #8250df; --e: #b35900; --f: #0e7490; --j: #bf3989; --k: #6b7a00; --m: #5f6b7a }
@media (prefers-color-scheme: dark) { :root { --fg: #e6edf3; --dim: #9aa7b4; --bg: #0f141a; --line: #2b3440; --a: #5aa9ff; --b: #ff9b5e; --c: #4ade80;
  --d: #c297ff; --e: #f2c14e; --f: #4fd1e8; --j: #ff8fd0; --k: #c5d86d; --m: #9aa7b4 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); max-width: 1180px; margin: 2rem auto; padding: 0 1.2rem }
h1 { font-size: 1.35rem; margin: 0; overflow-wrap: anywhere } p { color: var(--dim); margin: .3rem 0 1.2rem }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr)); gap: 1rem; margin-bottom: 1.5rem }
svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 8px }
svg text { fill: var(--fg); font: 12px system-ui, sans-serif } svg .h { font-weight: 600; font-size: 14px } svg .u, svg .l { fill: var(--dim); font-weight: 400; font-size: 12px }
.g { stroke: var(--line); stroke-width: 1 } polyline { fill: none; stroke-width: 2; stroke-linejoin: round }
.a { stroke: var(--a) } .b { stroke: var(--b); stroke-dasharray: 7 3 } .c { stroke: var(--c); stroke-dasharray: 2 3 }
.d { stroke: var(--d); stroke-dasharray: 10 3 2 3 } .e { stroke: var(--e); stroke-dasharray: 5 2 } .f { stroke: var(--f); stroke-dasharray: 12 4 }
.j { stroke: var(--j); stroke-dasharray: 4 4 } .k { stroke: var(--k); stroke-dasharray: 8 2 2 2 2 2 } .m { stroke: var(--m); stroke-dasharray: 1 4 }
circle { stroke: transparent; stroke-width: 14 } /* where the pointer finds it */
circle.a { fill: var(--a); stroke: transparent } circle.b { fill: var(--b); stroke: transparent } circle.c { fill: var(--c); stroke: transparent } circle.d { fill: var(--d); stroke: transparent } circle.e { fill: var(--e); stroke: transparent }
circle.f { fill: var(--f); stroke: transparent } circle.j { fill: var(--j); stroke: transparent } circle.k { fill: var(--k); stroke: transparent } circle.m { fill: var(--m); stroke: transparent }
line.a, line.b, line.c, line.d, line.e, line.f, line.j, line.k, line.m { stroke-width: 2 }
.wide { overflow-x: auto } table { border-collapse: collapse; margin-bottom: 1.5rem } th, td { text-align: left; padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
th { font-weight: 600; white-space: nowrap } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums } caption { text-align: left; font-weight: 600 }
`
