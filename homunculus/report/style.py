"""How the page looks: quiet type, tables that scroll and sort, light or dark as the reader's system is."""

CSS = """
:root{--ink:#1c1c24;--soft:#62626e;--paper:#fff;--wash:#f6f6f8;--rule:#d6d6de;--good:#0b7a53;--bad:#b03a1e;
--open:#7a6200;
--accent:#165c74;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--ink:#e8e8ee;--soft:#a2a2b0;--paper:#15151b;--wash:#1e1e26;--rule:#3a3a46;
--good:#4cc38f;--bad:#f08a6c;--open:#dcb64c;--accent:#7cc4dc}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
main{max-width:76rem;margin:0 auto;padding:3rem 1.5rem 5rem}
p,ul,nav{max-width:46rem}
h1{font-size:clamp(1.7rem,4vw,2.5rem);line-height:1.15;letter-spacing:-.02em;margin:0 0 .4rem;font-weight:650}
h2{font-size:1.35rem;letter-spacing:-.01em;margin:3.2rem 0 .5rem;padding-top:.9rem;border-top:1px solid var(--rule);
font-weight:640}
h3{font-size:1.02rem;margin:1.9rem 0 .4rem;font-weight:640}
.lead{color:var(--soft);font-size:1.05rem;margin:.2rem 0 1.6rem}
.note,figcaption{color:var(--soft);font-size:.86rem}
.warning{border-left:3px solid var(--open);padding:.1rem 0 .1rem .8rem}
code{font:.88em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;font-size:.92rem;margin:1.4rem 0 0}
.decision{display:flex;gap:.4rem 2rem;align-items:flex-start;flex-wrap:wrap;background:var(--wash);border-radius:10px;
padding:1.2rem 1.5rem;border-left:6px solid var(--open)}
.decision.good{border-color:var(--good)}.decision.bad{border-color:var(--bad)}
.decision h2{border:0;margin:0;padding:0;font-size:2.1rem;line-height:1.2;white-space:nowrap;color:var(--open)}
.decision.good h2{color:var(--good)}.decision.bad h2{color:var(--bad)}
.decision div{flex:1 1 22rem}.decision p{margin:.15rem 0 .35rem}
.scroll{overflow-x:auto;margin:.7rem 0 1rem;border:1px solid var(--rule);border-radius:8px;
-webkit-overflow-scrolling:touch}
table{border-collapse:separate;border-spacing:0;font-size:.86rem;line-height:1.35;width:100%}
th,td{padding:.42rem .75rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--rule);
white-space:nowrap}
tbody tr:last-child>*{border-bottom:0}
thead th{color:var(--soft);font-weight:550;background:var(--wash);vertical-align:bottom;white-space:normal;
min-width:4.6rem}
thead .groups th{border-bottom:0;padding-bottom:0;text-align:left;color:var(--ink);font-size:.78rem;
white-space:nowrap}
th:first-child{text-align:left;position:sticky;left:0;background:var(--paper);z-index:1;
border-right:1px solid var(--rule)}
thead th:first-child{background:var(--wash)}
tbody th{font-weight:500}
tbody tr:hover>*{background:var(--wash)}
td small{display:block;color:var(--soft);font-size:.78rem}
.none{color:var(--soft)}.text{text-align:left}
.sortable thead tr:last-child th{cursor:pointer}
.sortable th[aria-sort=descending]::after{content:" \\2193"}.sortable th[aria-sort=ascending]::after{
content:" \\2191"}
.prose th,.prose td{text-align:left;white-space:normal;min-width:8rem}
.prose td:nth-child(3){min-width:15rem}.prose td:nth-child(4){min-width:26rem}.prose td:nth-child(5){min-width:6rem}
.prose thead th{text-align:left}
.prose tbody th{max-width:12rem}
.tone{display:inline-block;white-space:nowrap;font-weight:600}.whole{white-space:nowrap}
.tone.good::before{content:"\\2713\\2002"}.tone.bad::before{content:"\\2715\\2002"}.tone.open::before{
content:"?\\2002"}
.tone.good{color:var(--good)}.tone.bad{color:var(--bad)}.tone.open{color:var(--open)}
figure{margin:1.2rem 0}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1rem 2.5rem}
.wide .pictures{grid-template-columns:minmax(0,46rem)}.one .pictures{grid-template-columns:minmax(0,35rem)}
.maps .pictures{grid-template-columns:repeat(auto-fill,minmax(min(44%,9.5rem),1fr))}
svg{width:100%;height:auto;display:block;overflow:visible}
.examples{display:inline-block;vertical-align:top;width:min(100%,34rem);margin:1.2rem 1.2rem .6rem 0}
.examples .pictures{grid-template-columns:1fr 1fr;gap:.8rem}
.examples img{width:100%;height:auto;display:block;border:1px solid var(--rule);margin-bottom:.35rem}
.examples .said{font-size:.86rem;margin:.1rem 0 .6rem;min-height:3.1em}
details{margin:1rem 0}summary{cursor:pointer;color:var(--accent)}
@media (max-width:40rem){main{padding:1.6rem 1rem 3rem}body{font-size:15px}th,td{padding:.38rem .55rem}.decision{
padding:1rem}
.wide .pictures>div{overflow-x:auto}.wide svg{min-width:33rem}
.prose thead{display:none}.prose,.prose tbody,.prose tr,.prose th,.prose td{display:block;min-width:0!important;
width:100%}
.prose th,.prose td{border:0!important;padding:.15rem .8rem;position:static}.prose tbody th{max-width:none;
font-weight:640}
.prose tr{border-bottom:1px solid var(--rule);padding:.5rem 0}.prose tr:last-child{border:0}}
@media print{.scroll{overflow:visible}main{max-width:none}}
"""

# Click on a head to sort by its column, once more for the other way round; what is no number goes last.
SCRIPT = """
document.querySelectorAll('table.sortable').forEach(t=>{const heads=[...t.tHead.rows[t.tHead.rows.length-1].cells];
heads.forEach((h,i)=>h.addEventListener('click',()=>{const down=h.getAttribute('aria-sort')!=='descending';
heads.forEach(o=>o.removeAttribute('aria-sort'));h.setAttribute('aria-sort',down?'descending':'ascending');
const value=r=>{const s=r.cells[i].textContent.replace('\\u2212','-').replace('< ','');const n=parseFloat(s);
return isNaN(n)?(/[a-z]/i.test(s)?s:null):n};
const rows=[...t.tBodies[0].rows].map(r=>[value(r),r]).sort(([a],[b])=>a===null?1:b===null?-1:
(typeof a==='number'&&typeof b==='number'?a-b:String(b).localeCompare(String(a)))*(down?-1:1));
rows.forEach(([,r])=>t.tBodies[0].append(r))}))});
"""

FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""
