// Search, and the list of versions. The page can be read without this script, and from a file.
"use strict";
const script = document.currentScript.src, base = new URL(".", script).href;
const load = (name) => document.head.append(Object.assign(document.createElement("script"), {src: new URL(name, base)}));
const element = (name, fields, ...children) => {
	const e = Object.assign(document.createElement(name), fields);
	e.append(...children);
	return e;
};

// The directory above has versions.js if there are versions beside this one: [[name, [page, ...]], ...], the newest first.
globalThis.siteVersions = (all) => {
	const box = document.querySelector(".versions"), page = location.href.slice(base.length).replace(/#.*/, "");
	box.append(element("ul", {}, ...all.map(([name, pages]) =>
		element("li", {}, element("a", {href: `${base}../${name}/${pages.includes(page) ? page : "index.html"}`}, name)))));
	box.hidden = false;
};
load("../versions.js");

const toc = document.querySelector(".toc");
if (toc && matchMedia("(min-width: 1400px)").matches) toc.open = true;

// Search: every word has to occur in a section. Words in titles and headings count most.
const box = document.querySelector(".search"), input = box.querySelector("input"), list = box.querySelector("div");
let sections;
globalThis.searchIndex = (all) => {
	sections = all.map((s) => ({...s, path: s.heading === s.title ? s.page : `${s.page}#${s.id}`,
		lower: [s.title, s.heading, s.text].map((text) => text.toLowerCase())}));
	search();
};
const start = (text, word) => {
	const at = text.indexOf(word);
	return at < 0 ? 0 : at === 0 || /[^\p{L}\p{N}]/u.test(text[at - 1]) ? 2 : 1;
};
const score = ({lower: [title, heading, text]}, words) => words.reduce((sum, word) => {
	const n = 40 * start(title, word) + 60 * start(heading, word) + Math.min(20, text.split(word).length - 1);
	return n > 0 && sum > 0 ? sum + n : 0;
}, heading.includes(words.join(" ")) ? 200 : 1);
const marked = (text, words) => {
	const found = words.map((word) => text.toLowerCase().indexOf(word)).filter((at) => at >= 0);
	const from = Math.max(0, Math.min(...found, text.length) - 40), part = (from > 0 ? "… " : "") + text.slice(from, from + 160);
	const split = new RegExp(`(${words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|")})`, "giu");
	return part.split(split).map((s, i) => i % 2 ? element("mark", {}, s) : s);
};
function search() {
	const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
	list.hidden = !words.length;
	if (!sections || !words.length) return;
	const all = sections.map((s) => [score(s, words), s]).filter(([n]) => n > 0);
	const pages = Object.groupBy(all, ([, s]) => s.page);
	// Among equals, sections of pages with several come first, and short ones.
	const rank = ([n, s]) => n + pages[s.page].length - s.text.length / 1e6;
	const found = all.sort((a, b) => rank(b) - rank(a)).slice(0, 30);
	list.replaceChildren(...found.map(([, s]) => element("a", {href: base + s.path}, element("b", {}, s.title),
		s.heading === s.title ? "" : element("span", {}, " › " + s.heading), element("small", {}, ...marked(s.text, words)))));
	if (!found.length) list.append(element("p", {}, "Nothing found."));
}
box.hidden = false;
input.addEventListener("focus", () => sections || load("search-index.js"), {once: true});
input.addEventListener("input", search);
document.addEventListener("keydown", (event) => {
	if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) input.focus();
	else if (event.key === "Escape") list.hidden = true;
	else if (box.contains(document.activeElement) && ["ArrowDown", "ArrowUp", "Enter"].includes(event.key)) {
		const items = [input, ...list.querySelectorAll("a")], at = items.indexOf(document.activeElement);
		if (event.key === "Enter") return at > 0 ? undefined : items[1]?.click();
		items[Math.max(0, Math.min(items.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))].focus();
	} else return;
	event.preventDefault();
});
document.addEventListener("click", (event) => { if (!box.contains(event.target)) list.hidden = true; });
