package e2e

import (
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestBrowser checks each kind of page in Chromium, and uses pages as people do.
func TestBrowser(t *testing.T) {
	chromium := browser(t)
	c, token, commit := newBrowserServer(t)
	base := c.base
	t.Run("pages", func(t *testing.T) { lookAtPages(t, newTab(t, chromium, base), token, commit) })
	t.Run("keys", func(t *testing.T) {
		b := newTab(t, chromium, base)
		b.wear(wide)
		b.open("/-/search")
		b.until(`document.activeElement.name == "q"`)
		b.until(`window.same = true`)
		b.press("RetryAfter" + kb.Enter)
		b.until(`document.querySelectorAll("mark").length > 3`)
		if !eval[bool](b, "window.same === true") {
			t.Error("results came with a new page")
		}
		b.until(`location.search == "?q=RetryAfter" && document.activeElement === document.body`)
		var went []string
		for _, key := range "jjjkk" {
			b.press(string(key))
			went = append(went, eval[string](b, "document.activeElement.href"))
		}
		if went[0] != went[4] || went[1] != went[3] || went[0] == went[1] || went[1] == went[2] ||
			!strings.Contains(went[0], "/-/file/") {
			t.Errorf("j and k went %q", went)
		}
		b.press("n")
		if !eval[bool](b, `document.activeElement.closest("h3") !== null`) {
			t.Error("n went to no file")
		}
		// Without the event that would type it: browsers send none after a key that a page takes.
		for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeRawKeyDown,
			input.DispatchKeyEventTypeKeyUp} {
			command(b, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: "/", Code: "Slash",
				WindowsVirtualKeyCode: 191})
		}
		b.until(`document.activeElement.name == "q"`)
		b.press("kindNames" + kb.Enter) // replaces the query
		b.until(`document.querySelector("mark")?.textContent == "kindNames"`)
		eval[chromedp.Void](b, "history.back()")
		b.until(`document.querySelector("mark")?.textContent == "RetryAfter" && document.querySelector("input[name=q]").value == "RetryAfter"`)
		b.press("j")
		b.press("j")
		b.press(kb.Enter)
		b.until(`location.pathname.includes("/-/file/") && location.hash.startsWith("#L")`)
		b.quiet()
	})
	t.Run("hostile", func(t *testing.T) {
		b := newTab(t, chromium, base)
		b.wear(wide)
		b.open("/-/search?q=needle")
		const strange = `document.querySelectorAll("main script, main img, main style, main iframe, [onerror]").length`
		if n := eval[int](b, strange); n != 0 {
			t.Errorf("%d elements come from a repository", n)
		}
		links := eval[[]string](b, `[...document.querySelectorAll("#r1 h3 a")].map((e) => e.href)`)
		if len(links) < 7 {
			t.Fatal(links)
		}
		for _, link := range links {
			if u, err := url.Parse(link); err != nil || !strings.HasPrefix(link, base+"/hostile.git/-/file/") ||
				u.Fragment != "" || u.RawQuery != "" {
				t.Errorf("a link to %s", link)
			}
		}
		b.open("/-/search?q=" + url.QueryEscape(`"><script>alert(1)</script>`))
		b.quiet()
	})
	t.Run("lines", func(t *testing.T) {
		b := newTab(t, chromium, base)
		b.wear(wide)
		b.open("/team/app/-/file/main/main.go")
		eval[chromedp.Void](b, `document.querySelector("#L1 a").focus()`)
		b.press(kb.ArrowDown + kb.ArrowDown + kb.Enter)
		b.until(`location.hash === "#L3" && document.querySelector("#L3:target")`)
		b.press(kb.ArrowDown + kb.ArrowDown)
		b.do(chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(chromedp.ModifierShift)))
		b.until(`location.hash === "#L3-L5" && document.querySelectorAll(".on").length === 3`)
		b.press(kb.Tab + kb.Shift)
		if n := eval[int](b, `document.querySelectorAll("a[data-n][tabindex='0']").length`); n != 1 {
			t.Errorf("Tab reaches %d line numbers, want 1", n)
		}
		b.quiet()
	})
	t.Run("skip", func(t *testing.T) {
		b := newTab(t, chromium, base)
		b.wear(wide)
		b.open("/team/app/")
		b.press(kb.Tab)
		b.until(`document.activeElement.className === "skip" && document.activeElement.getBoundingClientRect().top >= 0`)
		b.press(kb.Enter + kb.Tab)
		b.until(`document.querySelector("main a") === document.activeElement`)
		b.quiet()
	})
	t.Run("sign out", func(t *testing.T) {
		b := newTab(t, chromium, base)
		b.wear(phone)
		b.signIn(token)
		b.open("/team/app/")
		eval[chromedp.Void](b, `document.querySelector(".who summary").focus()`)
		b.press(kb.Enter)
		b.until(`document.querySelector(".who button").checkVisibility()`)
		b.fits("the open menu of a visitor")
		b.shot("menu-phone-light")
		b.press(kb.Tab + kb.Tab + kb.Enter)
		b.until(`location.pathname === "/" && document.querySelector("a.who")?.textContent === "Sign in"`)
		b.quiet()
	})
}
