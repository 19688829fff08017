// Without this file everything works, by links and one form. With it, results come without a new page, keys move between them, and a range
// of lines of a file can be marked and linked.
"use strict";
(() => {
	const box = document.querySelector("input[name=q]");
	const bar = document.querySelector(".bar");
	let running = null; // the search that runs

	// show puts the page at an address in the place of this one's results.
	async function show(address, remember) {
		running?.abort();
		const mine = running = new AbortController();
		bar.classList.add("busy");
		try {
			const answer = await fetch(address, { signal: mine.signal, headers: { Accept: "text/html" } });
			const kind = answer.headers.get("Content-Type") || "";
			const text = await answer.text();
			if (!kind.startsWith("text/html")) throw new Error(answer.status);
			const page = new DOMParser().parseFromString(text, "text/html");
			const fresh = page.querySelector("main"), old = document.querySelector("main");
			if (!fresh || !old) throw new Error("no page");
			if (remember) history.pushState(null, "", address);
			old.replaceWith(document.adoptNode(fresh));
			document.title = page.title;
			box.value = page.querySelector("input[name=q]")?.value ?? box.value;
			if (remember) scrollTo(0, 0);
		} catch (err) {
			if (err.name !== "AbortError") location.assign(address); // the browser says what is wrong better than we could
		} finally {
			if (running === mine) {
				running = null;
				bar.classList.remove("busy");
			}
		}
	}

	const form = box?.form;
	if (form && document.body.dataset.page === "search") {
		form.addEventListener("submit", (event) => {
			event.preventDefault();
			show(form.action.split("?")[0] + "?" + new URLSearchParams(new FormData(form)), true);
			box.blur();
		});
		document.addEventListener("click", (event) => {
			const link = event.target.closest("a[data-search]");
			if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
			event.preventDefault();
			show(link.href, true);
		});
		addEventListener("popstate", () => { if (!location.hash) show(location.href, false); });
	}

	// step moves the focus to the next or previous of some links, from where the focus is or else from what is in view.
	function step(selector, by) {
		const all = [...document.querySelectorAll(selector)].filter((e) => e.offsetParent);
		if (!all.length) return;
		let at = all.indexOf(document.activeElement);
		if (at < 0) {
			const here = document.activeElement === document.body ? null : document.activeElement;
			at = all.findIndex((e) => here ? here.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING : e.getBoundingClientRect().top > 80);
			if (at < 0) at = all.length - 1;
			else if (by < 0) at = Math.max(0, at - 1);
		} else {
			at = Math.min(all.length - 1, Math.max(0, at + by));
		}
		all[at].focus({ preventScroll: true });
		all[at].scrollIntoView({ block: "nearest" });
	}

	const rows = ".hits a, .file h3 a, .entries .name a, .commits .says a:not(.ref), .repositories .name a, .refs .name a";
	document.addEventListener("keydown", (event) => {
		if (event.metaKey || event.ctrlKey || event.altKey || event.isComposing) return;
		if (event.target === box) {
			if (event.key === "Escape") box.blur();
			else if (event.key === "ArrowDown") { event.preventDefault(); step(".hits a, .file h3 a", 1); }
			return;
		}
		if (event.target.closest?.("input, textarea, select")) return;
		switch (event.key) {
		case "/": event.preventDefault(); box?.focus(); box?.select(); break;
		case "j": step(rows, 1); break;
		case "k": step(rows, -1); break;
		case "n": step(".file h3 a", 1); break;
		case "p": step(".file h3 a", -1); break;
		}
	});

	// Commands can be copied.
	for (const field of document.querySelectorAll("input[data-copy]")) {
		const button = document.createElement("button");
		button.type = "button";
		button.className = "copy";
		button.textContent = "Copy";
		button.setAttribute("aria-label", "Copy the command for " + (field.labels[0]?.textContent ?? ""));
		button.addEventListener("click", async () => {
			field.select();
			try { await navigator.clipboard.writeText(field.value); } catch { document.execCommand("copy"); } // without TLS there is no clipboard
			button.textContent = "Copied";
			setTimeout(() => { button.textContent = "Copy"; }, 1500);
		});
		field.after(button);
	}

	// Lines of a file: #L3 is the style sheet's, #L3-L7 ours.
	const code = document.querySelector(".code");
	if (!code) return;
	const target = /^#L(\d+)/.exec(location.hash);
	if (target && !location.search && !document.getElementById("L" + target[1]) && document.querySelector('input[name="line"]'))
		location.replace("?line=" + target[1] + location.hash); // a long file shows some of its lines
	function mark(jump) {
		for (const line of code.querySelectorAll(".on")) line.classList.remove("on");
		const range = /^#L(\d+)-L?(\d+)$/.exec(location.hash);
		if (!range) return;
		const [from, to] = [+range[1], +range[2]].sort((a, b) => a - b);
		let line = document.getElementById("L" + from);
		if (jump) line?.scrollIntoView({ block: "center" });
		for (let n = from; line && n <= to; n++, line = line.nextElementSibling) line.classList.add("on");
	}
	let first = +(/^#L(\d+)/.exec(location.hash)?.[1] ?? 0);
	// One number of a line is in the order of Tab; arrows lead to the others.
	let at = document.querySelector(".code p:target > a[data-n]") ?? code.querySelector("a[data-n]");
	for (const number of code.querySelectorAll("a[data-n]")) number.tabIndex = -1;
	if (at) at.tabIndex = 0;
	function move(number) {
		at.tabIndex = -1;
		at = number;
		at.tabIndex = 0;
		at.focus({ preventScroll: true });
		at.scrollIntoView({ block: "nearest" });
	}
	code.addEventListener("keydown", (event) => {
		const number = event.target.closest("a[data-n]");
		const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
		const next = by && number && document.getElementById("L" + (+number.dataset.n + by))?.querySelector("a[data-n]");
		if (!next) return;
		event.preventDefault();
		move(next);
	});
	code.addEventListener("click", (event) => {
		const number = event.target.closest("a[data-n]");
		if (!number || event.metaKey || event.ctrlKey || event.altKey) return;
		event.preventDefault();
		const n = +number.dataset.n;
		if (event.shiftKey && first && first !== n) {
			history.replaceState(null, "", `#L${Math.min(first, n)}-L${Math.max(first, n)}`);
			location.replace(location.hash); // so that :target is no line any more
			mark(false);
		} else {
			first = n;
			location.hash = number.hash;
		}
		move(number); // the browser has taken the focus away
	});
	addEventListener("hashchange", () => mark(false));
	mark(true);
	if (/^#L\d+$/.test(location.hash)) document.getElementById(location.hash.slice(1))?.scrollIntoView({ block: "center" });
})();
