package replog_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// fill appends records until the head is record n, and returns the head.
func fill(t *testing.T, b bucket.Bucket, n uint64) *replog.Record {
	t.Helper()
	log := replog.Open(b, repository)
	r := first(replog.NewID())
	for {
		a, err := log.Append(t.Context(), r)
		if err != nil || a.Outcome() != replog.Won || a.Winner() != r {
			t.Fatalf("Append of record %d: %v, %v", r.Number, a, err)
		}
		if r.Number == n {
			return r
		}
		r = r.Next(replog.KindConfigure, "", time.Now())
	}
}

func TestHead(t *testing.T) {
	t.Parallel()
	for _, n := range []uint64{1, 2, 30} {
		m := buckettest.NewMemory(0)
		want := fill(t, m, n)
		m.SetFaults(buckettest.Faults{LateList: 0.7})
		log := replog.Open(m, repository)
		if got, err := log.Head(t.Context()); err != nil || got.Txn != want.Txn {
			t.Errorf("Head = %+v, %v, want record %d", got, err, n)
		}
		for known := uint64(1); known <= n; known++ {
			r, err := log.Get(t.Context(), known)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := log.Latest(t.Context(), r); err != nil || got.Txn != want.Txn {
				t.Errorf("Latest(record %d) = %+v, %v, want record %d", known, got, err, n)
			}
		}
	}
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	m := buckettest.NewMemory(0)
	head := fill(t, m, 3)
	log := replog.Open(m, repository)
	if err := log.Confirm(t.Context(), head); err != nil {
		t.Errorf("Confirm(head) = %v", err)
	}
	other := *head
	other.Txn = replog.NewID()
	for name, r := range map[string]*replog.Record{
		"missing": head.Next(replog.KindConfigure, "", time.Now()), "other": &other,
	} {
		err := log.Confirm(t.Context(), r)
		if !errors.Is(err, replog.ErrBrokenPromise) || !strings.Contains(err.Error(), log.Key(r.Number)) {
			t.Errorf("%s: Confirm = %v, want ErrBrokenPromise with the key", name, err)
		}
	}
	m.SetFaults(buckettest.Faults{Down: true})
	if err := log.Confirm(t.Context(), head); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Confirm without the store = %v, want unavailable", err)
	}
}

// A check that finds nothing new is one request. A node that was away does not read each record.
func TestRequests(t *testing.T) {
	t.Parallel()
	m := buckettest.NewMemory(0)
	head := fill(t, m, 1000)
	log := replog.Open(m, repository)
	oldest, err := log.Get(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		known *replog.Record
		most  int
	}{{head, 1}, {oldest, 7}} {
		before := m.Requests()
		if _, err := log.Latest(t.Context(), test.known); err != nil {
			t.Fatal(err)
		}
		after := m.Requests()
		if got := after["get"] + after["list"] - before["get"] - before["list"]; got > test.most {
			t.Errorf("Latest(record %d) made %d requests, want at most %d", test.known.Number, got, test.most)
		}
	}
}

func TestEmptyLog(t *testing.T) {
	t.Parallel()
	log := replog.Open(buckettest.NewMemory(0), repository)
	if r, err := log.Head(t.Context()); !fault.Is(err, fault.NotFound) || r != nil {
		t.Errorf("Head = %+v, %v, want an error of kind not_found", r, err)
	}
}

// Each damage has an error with the key of the object.
func TestDamage(t *testing.T) {
	t.Parallel()
	m := buckettest.NewMemory(0)
	head := fill(t, m, 3)
	log := replog.Open(m, repository)
	body := func(n uint64) []byte {
		body, _, err := m.Get(t.Context(), log.Key(n), replog.MaxRecord)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	second, third := body(2), body(3)
	stranger := first(replog.NewID()).Next(replog.KindConfigure, "", time.Now())
	stranger = stranger.Next(replog.KindConfigure, "", time.Now())
	other, err := stranger.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		body   []byte
		kind   fault.Kind
		broken bool
	}{
		"cut":           {body: third[:len(third)/2], kind: fault.Corrupt},
		"empty":         {body: []byte{}, kind: fault.Corrupt},
		"too long":      {body: make([]byte, replog.MaxRecord+1), kind: fault.Corrupt},
		"another":       {body: second, kind: fault.Corrupt},
		"newer":         {body: []byte(`{"format":2}`), kind: fault.Unavailable},
		"another chain": {body: other, kind: fault.Corrupt, broken: true},
	} {
		m.Set(log.Key(3), test.body)
		r, err := log.Get(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		_, err = log.Latest(t.Context(), r)
		if !fault.Is(err, test.kind) || errors.Is(err, replog.ErrBrokenPromise) != test.broken {
			t.Errorf("%s: Latest = %v, want an error of kind %v", name, err, test.kind)
		}
	}
	m.Set(log.Key(3), third)
	m.Set("repos/"+repository+"/log/0", nil)
	m.Set("repos/"+repository+"/log/0.bak", third)
	if _, err := log.Head(t.Context()); !fault.Is(err, fault.Corrupt) {
		t.Errorf("Head with a foreign object = %v, want an error of kind corrupt", err)
	}
	if r, err := log.Latest(t.Context(), head); err != nil || r != head {
		t.Errorf("Latest = %+v, %v, want the head", r, err)
	}
}

// While the store is down, the outcome is unknown. It is settled later.
func TestUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory(0)
		head := fill(t, m, 1)
		log := replog.Open(m, repository)
		m.SetFaults(buckettest.Faults{Down: true})
		start := time.Now()
		a, err := log.Append(t.Context(), head.Next(replog.KindConfigure, "", time.Now()))
		if err != nil || a.Outcome() != replog.Unknown || a.Winner() != nil || a.Err() == nil || a.Tries() < 10 {
			t.Fatalf("Append = %+v, %v, want unknown", a, err)
		}
		if took := time.Since(start); took < 25*time.Second || took > 35*time.Second {
			t.Errorf("Append took %v, want about 30s", took)
		}
		time.AfterFunc(time.Hour, func() { m.SetFaults(buckettest.Faults{}) })
		if got := a.Settle(t.Context()); got != replog.Won || a.Err() != nil || time.Since(start) < time.Hour {
			t.Errorf("Settle = %v, %v after %v", got, a.Err(), time.Since(start))
		}
	})
}

// A winner that does not follow the same parent proves that the store broke its promise.
func TestLostToBrokenChain(t *testing.T) {
	t.Parallel()
	m := buckettest.NewMemory(0)
	head := fill(t, m, 2)
	log := replog.Open(m, repository)
	before, err := log.Get(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	stranger := *before
	stranger.Txn = replog.NewID()
	a, err := log.Append(t.Context(), stranger.Next(replog.KindConfigure, "", time.Now()))
	if err != nil || a.Outcome() != replog.Lost || a.Winner().Txn != head.Txn ||
		!errors.Is(a.Err(), replog.ErrBrokenPromise) {
		t.Errorf("Append = %v, %v, %v, want lost and a broken promise", a.Outcome(), a.Err(), err)
	}
	a, err = log.Append(t.Context(), before.Next(replog.KindConfigure, "", time.Now()))
	if err != nil || a.Outcome() != replog.Lost || a.Winner().Txn != head.Txn || a.Err() != nil {
		t.Errorf("Append = %v, %v, %v, want lost", a.Outcome(), a.Err(), err)
	}
}

// A record that cannot be written is an error, and nothing is written.
func TestInvalidAppend(t *testing.T) {
	t.Parallel()
	m := buckettest.NewMemory(0)
	a, err := replog.Open(m, repository).Append(t.Context(), &replog.Record{})
	if err == nil || len(m.Keys()) != 0 {
		t.Errorf("Append = %v, %v, want an error", a, err)
	}
}

// A name has a log of the same kind.
func TestNameLog(t *testing.T) {
	t.Parallel()
	m := buckettest.NewMemory(0)
	p, err := git.ParseRepoPath("Team/app")
	if err != nil {
		t.Fatal(err)
	}
	log, err := replog.OpenName(m, p)
	if err != nil {
		t.Fatal(err)
	}
	head, err := log.Head(t.Context())
	if !fault.Is(err, fault.NotFound) {
		t.Fatalf("Head = %+v, %v, want an error of kind not_found", head, err)
	}
	for n, state := range []replog.NameState{replog.Live, replog.Removed, replog.Live} {
		r := head.Next(p, state, repository, "a", time.Now())
		other := head.Next(p, state, repository, "b", time.Now())
		a, err := log.Append(t.Context(), r)
		if err != nil || a.Outcome() != replog.Won {
			t.Fatalf("Append = %v, %v, want won", a, err)
		}
		if a, err = log.Append(t.Context(), other); err != nil || a.Outcome() != replog.Lost || a.Winner().Txn != r.Txn {
			t.Errorf("Append of another = %v, %v, want lost", a, err)
		}
		if head, err = log.Head(t.Context()); err != nil || head.Txn != r.Txn || head.Number != uint64(n+1) {
			t.Errorf("Head = %+v, %v, want %+v", head, err, r)
		}
	}
	path, number, err := replog.ParseNameKey(m.Keys()[0])
	if err != nil || path != p || number != 3 {
		t.Errorf("ParseNameKey(%s) = %v, %d, %v, want %v, 3", m.Keys()[0], path, number, err, p)
	}
}
