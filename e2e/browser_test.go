package e2e

import (
	"context"
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
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browserTime limits the whole test, for browsers that hang.
const browserTime = 5 * time.Minute

// pageChecks is the variable with the directory of axe-core and the Nu Html Checker, as .ci/clients makes it.
const pageChecks = "PACKHORSE_TEST_BROWSER"

// browser starts Chromium for `make test-browser`. Otherwise it skips the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	if os.Getenv(pageChecks) == "" {
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

// browserTab is a page in the browser.
type browserTab struct {
	*testing.T
	ctx  context.Context
	base string

	mu         sync.Mutex
	what       string   // the page, for complaints
	complaints []string // of pages
	code       int      // status of the last page
}

func newTab(t *testing.T, in context.Context, base string) *browserTab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(in)
	t.Cleanup(cancel)
	b := &browserTab{T: t, ctx: ctx, base: base}
	complain := func(what, text string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.complaints = append(b.complaints, b.what+": "+what+": "+text)
	}
	err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			complain("exception", e.ExceptionDetails.Text)
		case *log.EventEntryAdded: // also violations of the security policy
			if e.Entry.Source != log.EntrySourceNetwork {
				complain("console", e.Entry.Text)
			}
		case *network.EventRequestWillBeSent:
			if !strings.HasPrefix(e.Request.URL, base+"/") && !strings.HasPrefix(e.Request.URL, "data:") {
				complain("request", e.Request.URL)
			}
		case *network.EventResponseReceived:
			if e.Type == network.ResourceTypeDocument {
				b.mu.Lock()
				b.code = int(e.Response.Status)
				b.mu.Unlock()
			}
		case *cdppage.EventJavascriptDialogOpening:
			complain("dialog", e.Message)
			go func() {
				_, _ = chromedp.Call(ctx, cdppage.HandleJavaScriptDialog, cdppage.HandleJavaScriptDialogParams{Accept: true})
			}()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	command(b, network.Enable, network.EnableParams{})
	command(b, cdppage.BringToFront, cdp.Empty{})
	return b
}

func (b *browserTab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// eval returns the value of an expression.
func eval[V any](b *browserTab, expression string, options ...chromedp.EvaluateOption) V {
	b.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[V](expression, options...))
	if err != nil {
		b.Fatalf("%s: %.300s: %v", b.what, expression, err)
	}
	return v
}

// until waits until an expression is true, also on a later page.
func (b *browserTab) until(expression string) {
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

func (b *browserTab) open(path string) {
	b.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

func (b *browserTab) press(keys string) {
	b.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// click clicks at the middle of an element.
func (b *browserTab) click(selector string, options ...chromedp.MouseOption) {
	b.Helper()
	at := eval[[]float64](b, "(() => { const r = document.querySelector("+strconv.Quote(selector)+
		").getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] })()")
	b.do(chromedp.MouseClickXY(at[0], at[1], options...))
}

func command[P, R any](b *browserTab, c cdp.Command[P, R], params P) R {
	b.Helper()
	r, err := chromedp.Call(b.ctx, c, params)
	if err != nil {
		b.Fatal(c.Method, err)
	}
	return r
}

// look is a window size and the way to show pages in it.
type look struct {
	width, height      int64
	phone, dark, print bool
}

var (
	wide  = look{width: 1600, height: 1000}
	phone = look{width: 375, height: 812, phone: true}
)

func (b *browserTab) wear(l look) {
	b.Helper()
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	command(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: l.width,
		Height: l.height, DeviceScaleFactor: 1, Mobile: l.phone})
	media := ""
	if l.print {
		media = "print"
	}
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: media,
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// shot writes a screenshot if PACKHORSE_SCREENSHOTS is set.
func (b *browserTab) shot(name string) {
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

// status returns the status of the page.
func (b *browserTab) status() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.code
}

// fits checks that a page is not wider than the window.
func (b *browserTab) fits(what string) {
	b.Helper()
	if wide := eval[float64](b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); wide > 0 {
		b.Errorf("%s is %v pixels wider than the window", what, wide)
	}
}

func (b *browserTab) quiet() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, complaint := range b.complaints {
		b.Error(complaint)
	}
}
