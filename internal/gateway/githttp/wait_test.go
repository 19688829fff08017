package githttp

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// TestWaitersAreBounded fills the places of one caller. Others have places left.
func TestWaitersAreBounded(t *testing.T) {
	t.Parallel()
	w := newWaiters(maxWaiters, maxCallerWaiters, maxAnonymousWaiters, tooManyWaiters)
	var leaves []func()
	for range maxCallerWaiters {
		leave, err := w.enter("one")
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := w.enter("one"); !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) == 0 {
		t.Errorf("enter error = %v, want kind %v", err, fault.Exhausted)
	}
	for i := range maxWaiters - maxCallerWaiters {
		leave, err := w.enter([]balance.Caller{"a", "b", "c"}[i%3])
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := w.enter("d"); !fault.Is(err, fault.Exhausted) {
		t.Errorf("enter error = %v, want kind %v", err, fault.Exhausted)
	}
	for _, leave := range leaves {
		leave()
	}
	if w.all != 0 || len(w.perCaller) != 0 {
		t.Errorf("waiting = %d, by caller = %v, want none", w.all, w.perCaller)
	}
}

// TestAnonymousWaiters leaves room for those who are known.
func TestAnonymousWaiters(t *testing.T) {
	t.Parallel()
	w := newWaiters(maxWaiters, maxCallerWaiters, maxAnonymousWaiters, tooManyWaiters)
	var leaves []func()
	for i := range maxAnonymousWaiters {
		leave, err := w.enter(balance.Caller(fmt.Sprintf("192.0.%d.0/24", i)))
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := w.enter("2001:db8::/64"); !fault.Is(err, fault.Exhausted) {
		t.Errorf("enter error = %v, want kind %v", err, fault.Exhausted)
	}
	leave, err := w.enter("alice")
	if err != nil {
		t.Fatal(err)
	}
	leave()
	for _, leave := range leaves {
		leave()
	}
	if w.all != 0 || w.anonymous != 0 || len(w.perCaller) != 0 {
		t.Errorf("waiting = %d, anonymous = %d, by caller = %v, want none", w.all, w.anonymous, w.perCaller)
	}
}

func TestParseWait(t *testing.T) {
	t.Parallel()
	const id = "0123456789abcdef0123456789abcdef01234567"
	for query, want := range map[string]time.Duration{
		"repo=a&oid=" + id: defaultTimeout, "repo=a&generation=1&timeout=90": 90 * time.Second, "repo=a&oid=" + id +
			"&timeout=2m": 2 * time.Minute,
		"repo=a&oid=" + id + "&timeout=0": minTimeout, "repo=a&oid=" + id + "&timeout=600": maxTimeout,
		"repo=a": 0, "oid=" + id: 0, "repo=a&oid=main": 0, "repo=a&oid=" + id + "&timeout=601": 0, "repo=a&oid=" + id +
			"&timeout=-1s": 0, "repo=a&generation=-1": 0,
		"repo=a&oid=" + id + "&timeout=": 0, "repo=a&repo=b&oid=" + id: 0, "repo=a&oid=" + id + "&token=x": 0,
		"repo=a&generation=18446744073709551616": 0,
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if _, got, err := parseWait(values); got != want || (err != nil) != (want == 0) {
			t.Errorf("%s: %v, %v; want %v", query, got, err, want)
		}
	}
}
