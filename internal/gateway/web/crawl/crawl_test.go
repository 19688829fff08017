package crawl

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// A browser gets the cookie by a redirect and returns. A client without cookies is refused at its second request.
func TestCookie(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	g := New([]byte("key"), time.Second, func() time.Time { return now })
	request := func(path, cookie string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.RemoteAddr = "192.0.2.7:1234"
		if cookie != "" {
			r.Header.Set("Cookie", cookie)
		}
		return r
	}
	w := httptest.NewRecorder()
	if done, err := g.Needs(w, request("/a/-/blame/main/x?y=1", "")); !done || err != nil {
		t.Fatalf("without the cookie: %v, %v; want a redirect", done, err)
	}
	to := w.Header().Get("Location")
	if !strings.HasPrefix(to, SeenPath+"?to=") {
		t.Fatalf("Location = %q", to)
	}
	w = httptest.NewRecorder()
	if err := g.Seen(w, request(to, ""), true); err != nil {
		t.Fatal(err)
	}
	back, cookie := w.Header().Get("Location"), w.Header().Get("Set-Cookie")
	if back != "/a/-/blame/main/x?seen=1700000000&y=1" || !strings.Contains(cookie, "HttpOnly; Secure; SameSite=Lax") {
		t.Fatalf("Location = %q, Set-Cookie = %q", back, cookie)
	}
	if done, err := g.Needs(w, request(back, strings.Split(cookie, ";")[0])); done || err != nil {
		t.Errorf("with the cookie: %v, %v; want none", done, err)
	}
	if _, err := g.Needs(w, request(back, "")); !fault.Is(err, fault.Exhausted) {
		t.Errorf("back without the cookie: %v, want Exhausted", err)
	}
	now = now.Add(time.Minute)
	w = httptest.NewRecorder()
	if done, err := g.Needs(w, request(back, "")); !done || err != nil {
		t.Errorf("an address that was shared a minute ago: %v, %v; want a redirect", done, err)
	}
	to, w = w.Header().Get("Location"), httptest.NewRecorder()
	if err := g.Seen(w, request(to, ""), true); err != nil {
		t.Fatal(err)
	}
	if to = w.Header().Get("Location"); to != "/a/-/blame/main/x?seen=1700000060&y=1" {
		t.Errorf("it leads to %q", to)
	}
	if _, err := g.Needs(w, request(to, "")); !fault.Is(err, fault.Exhausted) {
		t.Errorf("back from there without the cookie: %v, want Exhausted", err)
	}
	for _, bad := range []string{"//evil.example/", "https://evil.example/", `/\evil.example`, "/%09/evil.example", ""} {
		if err := g.Seen(w, request(SeenPath+"?to="+bad, ""), false); err == nil {
			t.Errorf("a redirect to %q was made", bad)
		}
	}
}

// The budget is that of a network, and comes back with time.
func TestBudget(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	g := New(nil, 10*time.Second, func() time.Time { return now })
	spend := func(remote string, d time.Duration) error {
		leave, err := g.Enter(t.Context(), remote)
		if err == nil {
			now = now.Add(d)
			leave()
		}
		return err
	}
	for range 3 {
		if err := spend("192.0.2.1:1", 4*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	err := spend("192.0.2.200:1", time.Second)
	if wait := fault.RetryAfter(err); !fault.Is(err, fault.Exhausted) || wait.Round(time.Second) != 53*time.Second ||
		!strings.Contains(fault.Message(err), "try again in "+fault.RetryHeader(wait)+" seconds") {
		t.Errorf("after 12 s: %v, want Exhausted with a time", err)
	}
	for _, other := range []string{"192.0.3.1:1", "[2001:db8:1::1]:1", "nonsense"} {
		if err := spend(other, 0); err != nil {
			t.Errorf("%s: %v", other, err)
		}
	}
	now = now.Add(time.Minute)
	if err := spend("192.0.2.1:1", 0); err != nil {
		t.Errorf("a minute later: %v", err)
	}
	slow := func(d time.Duration) error {
		end, err := g.ChargeSlow("192.0.2.1:1")
		if err == nil {
			now = now.Add(d)
			end()
		}
		return err
	}
	for range 100 {
		if err := slow(freeTime); err != nil {
			t.Fatalf("pages within the time that costs nothing: %v", err)
		}
	}
	if err := slow(time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := slow(0); !fault.Is(err, fault.Exhausted) || spend("192.0.2.1:1", 0) == nil {
		t.Errorf("after a minute for a page: %v, want Exhausted, also for costly pages", err)
	}
	now = now.Add(fault.RetryAfter(slow(0)))
	if err := slow(0); err != nil || spend("192.0.2.1:1", 0) == nil {
		t.Errorf("when the network owes less than its budget: %v, want none, but for costly pages", err)
	}
	g.budget = 0
	if err := errors.Join(spend("192.0.2.1:1", time.Hour), spend("192.0.2.1:1", time.Hour)); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// Few requests wait for a seat. Others are refused at once.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(nil, time.Second, time.Now)
		for range cap(g.seats) {
			if _, err := g.Enter(t.Context(), "192.0.2.1:1"); err != nil {
				t.Fatal(err)
			}
		}
		begin := time.Now()
		waits := make(chan time.Duration, 2*cap(g.queue))
		for range cap(waits) {
			go func() {
				if _, err := g.Enter(t.Context(), "192.0.2.1:1"); !fault.Is(err, fault.Exhausted) {
					t.Errorf("while all seats are taken: %v, want Exhausted", err)
				}
				waits <- time.Since(begin)
			}()
		}
		for i := range cap(waits) {
			if wait, long := <-waits, i >= cap(waits)/2; (wait == patience) != long || !long && wait != 0 {
				t.Errorf("request %d was refused after %v", i, wait)
			}
		}
	})
}
