package web_test

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// browserTime limits the whole test, for browsers that hang.
const browserTime = 2 * time.Minute

// browser starts Chromium for `make test-browser`. Otherwise it skips the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	if os.Getenv("PACKHORSE_TEST_BROWSER") == "" {
		t.Skip("pages are looked at in a browser by make test-browser")
	}
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no chromium; install the package chromium")
		}
		t.Skip("*** There is no chromium: pages are NOT looked at in a browser. Install the package chromium to have " +
			"that. ***")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.UserDataDir(t.TempDir()),
		chromedp.WSURLReadTimeout(browserTime))
	limit, cancel := context.WithTimeout(t.Context(), browserTime)
	t.Cleanup(cancel)
	all, end := chromedp.NewExecAllocator(limit, options...)
	t.Cleanup(end)
	first, _ := chromedp.NewContext(all)
	if err := chromedp.Do(first); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = chromedp.Cancel(first) }) // its error at the end does not matter
	return first
}

// tab is a page in the browser.
type tab struct {
	*testing.T
	ctx  context.Context
	base string

	mu         sync.Mutex
	complaints []string // of pages
}

func newTab(t *testing.T, in context.Context, base string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(in)
	t.Cleanup(cancel)
	b := &tab{T: t, ctx: ctx, base: base}
	complain := func(what, text string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.complaints = append(b.complaints, what+": "+text)
	}
	err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			complain("exception", e.ExceptionDetails.Text)
		case *log.EventEntryAdded: // also violations of the security policy
			if e.Entry.Source != log.EntrySourceNetwork {
				complain("console", e.Entry.Text)
			}
		case *page.EventJavascriptDialogOpening:
			complain("dialog", e.Message)
			go func() {
				_, _ = chromedp.Call(ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
			}()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	call(b, page.BringToFront, cdp.Empty{})
	return b
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// eval returns the value of an expression.
func eval[V any](b *tab, expression string) V {
	b.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[V](expression))
	if err != nil {
		b.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until an expression is true, also on a later page.
func (b *tab) until(expression string) {
	b.Helper()
	limit, cancel := context.WithTimeout(b.ctx, browserTime/5)
	defer cancel()
	for {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if ok && err == nil {
			return
		}
		select {
		case <-limit.Done():
			b.Fatalf("not in time: %s: %v", expression, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (b *tab) open(path string) {
	b.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

func (b *tab) press(keys string) {
	b.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// click clicks at the middle of an element.
func (b *tab) click(selector string, options ...chromedp.MouseOption) {
	b.Helper()
	at := eval[[]float64](b, "(() => { const r = document.querySelector("+strconv.Quote(selector)+
		").getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] })()")
	b.do(chromedp.MouseClickXY(at[0], at[1], options...))
}

func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.Helper()
	r, err := chromedp.Call(b.ctx, command, params)
	if err != nil {
		b.Fatal(command.Method, err)
	}
	return r
}

// look is a window size and a colour scheme.
type look struct {
	name          string
	width, height int64
	phone, dark   bool
}

var looks = []look{{"phone-light", 390, 844, true, false}, {"phone-dark", 390, 844, true, true},
	{"wide-light", 1600, 1000, false, false}, {"wide-dark", 1600, 1000, false, true}}

func (b *tab) wear(l look) {
	b.Helper()
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: l.width, Height: l.height,
		DeviceScaleFactor: 1, Mobile: l.phone})
	call(b, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// shot writes a screenshot if PACKHORSE_SCREENSHOTS is set.
func (b *tab) shot(name string) {
	b.Helper()
	dir := os.Getenv("PACKHORSE_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o666); err != nil {
		b.Fatal(err)
	}
}

// fits checks that a page is not wider than the window.
func (b *tab) fits(what string) {
	b.Helper()
	if wide := eval[float64](b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); wide > 0 {
		b.Errorf("%s is %v pixels wider than the window", what, wide)
	}
}

func (b *tab) quiet() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, complaint := range b.complaints {
		b.Error(complaint)
	}
}

func TestBrowser(t *testing.T) {
	chromium := browser(t)
	base := serve(t, newWorld(t), visitor{}).URL
	t.Run("looks", func(t *testing.T) {
		b := newTab(t, chromium, base)
		pages := []struct{ name, path string }{
			{"start", "/-/search"}, {"results", "/-/search?q=error"}, {"few", "/-/search?q=repo:pages+painter"},
			{"nothing", "/-/search?q=xyzzyplugh"},
			{"hostile", "/-/search?q=needle"},
		}
		for _, l := range looks {
			b.wear(l)
			for _, p := range pages {
				b.open(p.path)
				b.fits(p.name + " on " + l.name)
				b.shot(p.name + "-" + l.name)
			}
		}
		b.quiet()
	})
	t.Run("keys", func(t *testing.T) {
		b := newTab(t, chromium, base)
		b.wear(looks[2])
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
			call(b, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: "/", Code: "Slash",
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
		b.wear(looks[2])
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
			if u, err := url.Parse(link); err != nil || !strings.HasPrefix(link, base+"/hostile/-/file/") || u.Fragment != "" ||
				u.RawQuery != "" {
				t.Errorf("a link to %s", link)
			}
		}
		b.open("/-/search?q=" + url.QueryEscape(`"><script>alert(1)</script>`))
		b.quiet()
	})
	t.Run("without scripts", func(t *testing.T) {
		w := newWorld(t)
		w.noScript = true
		b := newTab(t, chromium, serve(t, w, visitor{}).URL)
		b.wear(looks[0])
		b.open("/-/search")
		b.click(".examples a")
		b.until(`location.search.startsWith("?q=") && document.querySelector(".sum") !== null`)
		b.open("/-/search")
		b.until(`document.activeElement.name == "q"`)
		b.press("RetryAfter" + kb.Enter)
		b.until(`location.search == "?q=RetryAfter" && document.querySelector(".hits a") !== null`)
		b.click(".hits a i")
		b.until(`location.pathname.includes("/-/file/") && location.hash.startsWith("#L")`)
	})
}
